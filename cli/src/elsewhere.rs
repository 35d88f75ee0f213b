//! The commands that need Linux, on other systems: they say what to do.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::bail;
use clap::Subcommand;

use super::terminal::Output;

/// Any arguments: the message is about the system.
#[derive(Debug, clap::Args)]
pub(crate) struct Rest {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    rest: Vec<OsString>,
}

macro_rules! commands {
    ($($name:ident)*) => {
        #[derive(Debug, Subcommand)]
        pub(crate) enum Command {
            $(
                /// Needs Linux
                $name(Rest),
            )*
        }

        impl Command {
            const fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($name),)*
                }
            }
        }
    };
}

commands! {
    Demo Devices Ping Blast Pingpong Bridge Limit Rping Perf Run Doctor Stat Explore Study Inject Peer
}

impl Command {
    pub(crate) fn run(self, _: &mut Output) -> anyhow::Result<ExitCode> {
        let name = self.name().to_ascii_lowercase();
        bail!(
            "`roce {name}` needs Linux; run it in a container or a virtual machine with Linux \
             (docs/how-to/containers.md). On this system, analyze, counters, dissect, explain, ladder, sim and why work"
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::{ColorChoice, FromArgMatches as _};

    use super::*;

    fn names<T: Subcommand>() -> Vec<String> {
        let command = T::augment_subcommands(clap::Command::new("roce").color(ColorChoice::Never));
        command.get_subcommands().map(|command| command.get_name().to_owned()).collect()
    }

    #[test]
    fn every_system_has_the_commands_of_linux() {
        assert_eq!(names::<Command>(), names::<crate::network::Command>());
    }

    /// Options that exist on Linux are not an error of the command line.
    #[test]
    fn a_command_that_needs_linux_says_so_with_any_arguments() {
        for arguments in [&["roce", "ping"][..], &["roce", "ping", "192.0.2.1", "--op", "write", "-n", "9"]] {
            let line = Command::augment_subcommands(clap::Command::new("roce"));
            let parsed = Command::from_arg_matches(&line.get_matches_from(arguments)).unwrap();
            let error = parsed.run(&mut Output::stdout(crate::terminal::ColorChoice::Never)).unwrap_err();
            assert!(error.to_string().starts_with("`roce ping` needs Linux"), "{error}");
        }
    }
}
