//! Programs as an ordinary user, started by root.

use std::process::Command;

use crate::has_program;

/// The words that run a program as the user nobody, without capabilities and without a way to get them outside of user
/// namespaces of its own. setpriv is in util-linux.
pub const AS_NOBODY: [&str; 7] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--inh-caps=-all",
    "--bounding-set=-all",
    "--no-new-privs",
];

/// A command that runs its arguments in this way, for root only. `None`: setpriv is not installed.
#[must_use]
pub fn as_nobody() -> Option<Command> {
    let [setpriv, options @ ..] = AS_NOBODY;
    has_program(setpriv).then(|| {
        let mut command = Command::new(setpriv);
        command.args(options);
        command
    })
}
