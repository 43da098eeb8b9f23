# shellcheck shell=bash
# What all scripts share: the repository's root as working folder, where things are built, how a script speaks, and how it
# runs steps.
# Sourced, never run. It installs nothing; that is scripts/setup's work.

set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"

# rustup installs into this folder, and a shell that was open before does not have it on its path.
case ":$PATH:" in
*":$HOME/.cargo/bin:"*) ;;
*) [ -d "$HOME/.cargo/bin" ] && PATH="$PATH:$HOME/.cargo/bin" ;;
esac
export PATH

# rust-toolchain.toml pins the compiler of CI. If it is not installed, the scripts use the default one: nothing is downloaded.
if command -v rustup >/dev/null 2>&1 && [ -z "${RUSTUP_TOOLCHAIN:-}" ]; then
    pinned="$(sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml)"
    if ! (cd / && rustup toolchain list) 2>/dev/null | grep "^$pinned\b" >/dev/null; then
        active="$(cd / && rustup show active-toolchain 2>/dev/null | awk '{ print $1 }')" || active=""
        # Without a default one, rustup installs the pinned one.
        [ -z "$active" ] || export RUSTUP_TOOLCHAIN="$active"
    fi
fi

target="${CARGO_TARGET_DIR:-$root/target}"
case "$target" in /*) ;; *) target="$root/$target" ;; esac
venv="${FOREBAY_VENV:-$target/venv}"
case "$venv" in /*) ;; *) venv="$root/$venv" ;; esac
script_name="$(basename "$0")"
export root target venv script_name

# Prints one line to stderr, named after the script.
say() {
    printf '%s: %s\n' "$script_name" "$*" >&2
}

# Ends the script with a last line that says why.
fail() {
    say "$*"
    exit 1
}

# Prints the comment block at the head of the script that asks, as its help.
print_help() {
    sed -n '2,/^$/ s/^# \{0,1\}//p' "$0"
}

# Begins a list of steps: a folder for their output, and the file of their times. A script that another one's steps run
# adds to that one's file; the first prints it as a table at its end.
begin_steps() {
    step_logs="$target/$1-logs"
    step_number=0
    # A step that hangs ends with its name instead of taking the whole run's time.
    step_limit_seconds="${FOREBAY_STEP_LIMIT_SECONDS:-2400}"
    rm -rf "$step_logs"
    mkdir -p "$step_logs"
    if [ -z "${FOREBAY_STEP_TIMES:-}" ]; then
        export FOREBAY_STEP_TIMES="$step_logs/times"
        : >"$FOREBAY_STEP_TIMES"
        trap print_step_times EXIT
    fi
}

# step NAME COMMAND…: runs one step, shows its output and keeps it, and says how long it took and computed.
step() {
    local name="$1" begun="$SECONDS" status=0 seconds computed output shown
    local limit=(timeout --foreground "$step_limit_seconds")
    shift
    # timeout starts programs alone.
    ! declare -F "$1" >/dev/null || limit=()
    step_number=$((step_number + 1))
    printf '\n== %s\n' "$name"
    times >"$step_logs/computed"
    exec {output}> >(exec tee "$step_logs/$step_number")
    shown=$!
    (${limit[@]+"${limit[@]}"} "$@") >&"$output" 2>&1 {output}>&- || status=$?
    exec {output}>&-
    end_output "$shown" || say "$name left processes that hold its output; they no longer do"
    seconds=$((SECONDS - begun))
    times >>"$step_logs/computed"
    # Every second line is of the processes that this shell has waited for: "1m2.000s 0m3.000s".
    computed="$(awk -F '[ms ]+' 'NR % 2 == 0 { last = sum; sum = $1 * 60 + $2 + $3 * 60 + $4 }
        END { printf "%d", sum - last }' "$step_logs/computed")"
    printf '== %s: %s seconds, %s of a processor\n' "$name" "$seconds" "$computed"
    printf '%s\t%s\t%s\n' "$seconds" "$computed" "$name" >>"$FOREBAY_STEP_TIMES"
    [ "$status" != 124 ] || fail "FAILED: $name took longer than $step_limit_seconds seconds"
    [ "$status" = 0 ] || repeat_panics "$step_logs/$step_number"
    [ "$status" = 0 ] || fail "FAILED: $name (status $status)"
}

# Repeats what tests of Rust panicked with, as other tests have printed much since.
repeat_panics() {
    awk '/panicked at/ { left = 8 } left && count < 200 { print "  " $0; left--; count++ }' "$1" | cut -c 1-2000 >&2
}

# end_output PROCESS: waits until the process has shown a step's output. A process that outlives the step, such as the
# daemon of a test that failed, may hold the output open for ever: after ten seconds it is cut off.
end_output() {
    local _
    for _ in {1..100}; do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.1
    done
    kill "$1" 2>/dev/null
    return 1
}

# What each step took and computed, in seconds, and their sums.
print_step_times() {
    awk -F '\t' '
        { printf "%6d %6d  %s\n", $1, $2, $3; sum += $1; computed += $2 }
        END { printf "%6d %6d  seconds in all, and of a processor\n", sum, computed }' "$FOREBAY_STEP_TIMES"
}
