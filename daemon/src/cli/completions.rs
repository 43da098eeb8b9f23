//! `forebay completions`: a script that completes commands and options in a shell.

use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;
use forebay_inspect::output::print;

/// Arguments of `forebay completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
Where shells look for it:
  bash  forebay completions bash > ~/.local/share/bash-completion/completions/forebay
  zsh   forebay completions zsh > FOLDER/_forebay, a FOLDER that $fpath has
  fish  forebay completions fish > ~/.config/fish/completions/forebay.fish")]
pub(super) struct CompletionsArguments {
    /// The shell that reads the script.
    shell: Shell,
}

/// `forebay completions`, for all commands of the program.
pub(super) fn completions(
    arguments: &CompletionsArguments,
    program: &Command,
) -> anyhow::Result<ExitCode> {
    // Bash's script would also offer hidden commands.
    let commands = program.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut shown =
        Command::new("forebay").version(env!("CARGO_PKG_VERSION")).subcommands(commands);
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut shown, "forebay", &mut script);
    print(String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
