# shellcheck shell=bash
# What all scripts share: the repository's root as working folder, where things are built, and how a script speaks.
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
