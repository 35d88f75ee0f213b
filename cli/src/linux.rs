//! The commands that need Linux: they open devices, or query the kernel or running processes.

use std::process::ExitCode;

use clap::Subcommand;

use super::terminal::Output;
use super::{
    bridge, demo, devices, doctor, explore, inject, limit, measure, peer, perf, pingpong, rping, run, stat,
    study,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(demo::Args),
    Devices(devices::Args),
    Ping(measure::PingArgs),
    Blast(measure::BlastArgs),
    Pingpong(pingpong::Args),
    Bridge(bridge::Args),
    Limit(limit::Args),
    Rping(rping::Args),
    Perf(perf::Args),
    Run(run::Args),
    Doctor(doctor::Args),
    Stat(stat::Args),
    Explore(explore::Args),
    Study(study::Args),
    Inject(inject::Args),
    Peer(peer::Args),
}

impl Command {
    pub(crate) fn run(self, output: &mut Output) -> anyhow::Result<ExitCode> {
        match self {
            Self::Demo(args) => demo::run(&args, output),
            Self::Devices(args) => devices::run(&args, output),
            Self::Ping(args) => measure::ping(&args, output),
            Self::Blast(args) => measure::blast(&args, output),
            Self::Pingpong(args) => pingpong::run(&args, output),
            Self::Bridge(args) => bridge::run(&args, output),
            Self::Limit(args) => limit::run(&args, output),
            Self::Rping(args) => rping::run(&args, output),
            Self::Perf(args) => perf::run(&args, output),
            Self::Run(args) => run::run(&args, output),
            Self::Doctor(args) => doctor::run(&args, output),
            Self::Stat(args) => stat::run(&args, output),
            Self::Explore(args) => explore::run(&args, output),
            Self::Study(args) => study::run(&args, output),
            Self::Inject(args) => inject::run(&args, output),
            Self::Peer(args) => peer::run(&args, output),
        }
    }
}
