//! `roce completions` and `roce man`: files for the shell and for `man`, generated from the arguments.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Command;

use super::terminal::Output;
use super::version::VERSION;

/// Print a completion script for a shell
///
/// With this script, the shell completes commands, options and their values. Packages install it; the
/// examples install it for one user.
#[derive(Debug, clap::Args)]
#[command(after_help = COMPLETIONS)]
pub(super) struct CompletionsArgs {
    /// Shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: clap_complete::Shell,
}

const COMPLETIONS: &str = "Examples:
  roce completions bash > ~/.local/share/bash-completion/completions/roce
  roce completions zsh > ~/.zfunc/_roce
  roce completions fish > ~/.config/fish/completions/roce.fish";

/// Print the manual page of a command, or write all pages
#[derive(Debug, clap::Args)]
#[command(after_help = MAN)]
pub(super) struct ManArgs {
    /// Command whose page to print [default: roce itself]
    #[arg(value_name = "COMMAND", conflicts_with = "out")]
    command: Option<String>,

    /// Write the pages of all commands into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

const MAN: &str = "Examples:
  roce man perf | man -l -
  roce man --out ~/.local/share/man/man1";

/// Prints the completion script of `command`, the whole command line.
pub(super) fn completions(
    args: &CompletionsArgs,
    mut command: Command,
    output: &mut Output,
) -> anyhow::Result<ExitCode> {
    // The generator cannot report a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "roce", &mut script);
    output.write_all(&script)?;
    output.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Prints or writes the manual pages of `command`, the whole command line.
pub(super) fn man(args: &ManArgs, command: Command, output: &mut Output) -> anyhow::Result<ExitCode> {
    let pages = pages(command);
    if let Some(dir) = &args.out {
        let cannot_write = |path: &std::path::Path| format!("cannot write {}", path.display());
        fs::create_dir_all(dir).with_context(|| cannot_write(dir))?;
        for page in pages {
            let path = dir.join(format!("{}.1", page.get_name()));
            fs::write(&path, rendered(page)?).with_context(|| cannot_write(&path))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let name = args.command.as_ref().map_or_else(|| "roce".to_owned(), |command| format!("roce-{command}"));
    let Some(page) = pages.into_iter().find(|page| page.get_name() == name) else {
        bail!(
            "there is no command `{}`; `roce --help` lists them",
            args.command.as_deref().unwrap_or_default()
        );
    };
    output.write_all(&rendered(page)?)?;
    output.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the command itself and each subcommand, with the name of its page.
fn pages(command: Command) -> Vec<Command> {
    // Pages of two builds of a version are equal.
    let mut all = command.disable_help_subcommand(true).long_version(None::<&'static str>);
    all.build();
    let subcommands: Vec<Command> = all
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .map(|command| {
            let name: &'static str = format!("roce-{}", command.get_name()).leak();
            command.clone().name(name).version(VERSION)
        })
        .collect();
    std::iter::once(all).chain(subcommands).collect()
}

fn rendered(page: Command) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text)?;
    Ok(text)
}
