//! The completion scripts, in the shells that read them.

use std::process::Command;

use forebay_tests::{TestDir, program, skipped};

/// What bash offers for the last of some words.
fn offered(script: &str, words: &[&str]) -> Vec<String> {
    let last = words.last().unwrap();
    let before = words[words.len() - 2];
    let ask = format!(
        "{script}\nCOMP_WORDS=({}); COMP_CWORD={}; _forebay forebay '{last}' '{before}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.iter().map(|word| format!("'{word}' ")).collect::<String>(),
        words.len() - 1
    );
    let finished = program::run(Command::new("bash").args(["--norc", "-c", &ask]));
    assert!(finished.status.success() && finished.stderr.is_empty(), "{finished:?}");
    finished.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_and_values() {
    let dir = TestDir::new();
    let script = program::run(&mut dir.forebay(&["completions", "bash"]));
    assert!(script.status.success(), "{script:?}");
    let script = script.stdout;
    let commands = offered(&script, &["forebay", ""]);
    for command in ["init", "serve", "check", "completions", "--version"] {
        assert!(commands.iter().any(|offered| offered == command), "{command}: {commands:?}");
    }
    for hidden in ["private", "guarded"] {
        assert!(!commands.iter().any(|offered| offered == hidden), "{hidden}: {commands:?}");
    }
    assert_eq!(offered(&script, &["forebay", "ben"]), ["bench"]);
    assert_eq!(offered(&script, &["forebay", "init", "--f"]), ["--force"]);
    assert!(offered(&script, &["forebay", "completions", ""]).contains(&"fish".to_owned()));
}

#[test]
fn zsh_and_fish_read_their_scripts() {
    let dir = TestDir::new();
    for shell in ["zsh", "fish"] {
        let script = dir.path(&format!("script.{shell}"));
        let made = program::run(&mut dir.forebay(&["completions", shell]));
        assert!(made.status.success() && made.stdout.contains("plan-only"), "{made:?}");
        assert!(!made.stdout.contains("guarded"), "{}", made.stdout);
        std::fs::write(&script, made.stdout).unwrap();
        match Command::new(shell).arg("-n").arg(&script).status() {
            Ok(status) => assert!(status.success(), "{shell}"),
            Err(_) => skipped(&format!("{shell} is not installed")),
        }
    }
}
