//! Running programs as an unprivileged user from root.

use std::process::Command;

use crate::has_program;

/// A command prefix that runs a program as user nobody, without capabilities. The program cannot get any
/// outside its own user namespaces. setpriv is in util-linux.
pub const AS_NOBODY: [&str; 7] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--inh-caps=-all",
    "--bounding-set=-all",
    "--no-new-privs",
];

/// Returns a command that runs its arguments as user nobody, for root only. Returns `None` if setpriv is not
/// installed.
#[must_use]
pub fn as_nobody() -> Option<Command> {
    let [setpriv, options @ ..] = AS_NOBODY;
    has_program(setpriv).then(|| {
        let mut command = Command::new(setpriv);
        command.args(options);
        command
    })
}
