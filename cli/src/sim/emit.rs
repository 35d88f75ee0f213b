//! Jobs for many machines: the same command once per combination of a sweep.

use std::path::{Component, Path, PathBuf};

use anyhow::ensure;

/// What the job is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum System {
    /// An array job for sbatch
    Slurm,
    /// An indexed Job for kubectl apply
    Kubernetes,
}

/// A sweep that others are to run.
pub(super) struct Job<'a> {
    /// Where its reports go.
    pub(super) out: &'a Path,
    /// How many combinations it has.
    pub(super) count: usize,
    /// The command line, as it was given.
    pub(super) arguments: &'a [String],
    /// The files that its runs read.
    pub(super) files: &'a [PathBuf],
}

impl Job<'_> {
    /// The text of a job that runs the same command for each index, and says how to merge.
    pub(super) fn text(&self, system: System) -> anyhow::Result<String> {
        match system {
            System::Slurm => Ok(self.slurm()),
            System::Kubernetes => self.kubernetes(),
        }
    }

    fn slurm(&self) -> String {
        let command: Vec<String> = without_emit(self.arguments).iter().map(|text| quoted(text)).collect();
        let (command, out, last) = (command.join(" "), quoted_path(self.out), self.count.saturating_sub(1));
        format!(
            "#!/bin/sh\n\
             #SBATCH --job-name=roce-sim\n\
             #SBATCH --array=0-{last}\n\
             #SBATCH --cpus-per-task=1\n\
             #SBATCH --output=roce-sim-%A-%a.log\n\
             # Submit with: sbatch THIS_FILE. When the array is done, in the same directory: roce sim --merge {out}\n\
             set -e\n\
             exec roce {command} --index \"$SLURM_ARRAY_TASK_ID\"\n"
        )
    }

    fn kubernetes(&self) -> anyhow::Result<String> {
        check_on_claim("the directory of --out", self.out)?;
        for file in self.files {
            check_on_claim("the file", file)?;
        }
        // JSON strings are YAML strings.
        let arguments = without_emit(self.arguments);
        let arguments: Vec<String> =
            arguments.iter().map(|argument| serde_json::Value::from(argument.as_str()).to_string()).collect();
        let files: Vec<String> = self.files.iter().map(|file| quoted_path(file)).collect();
        let needed = if files.is_empty() {
            "# Nothing has to be on the claim beforehand.".to_owned()
        } else {
            format!("# Before, copy onto the claim, as they lie here: {}", files.join(" "))
        };
        Ok(format!(
            "# Apply with: kubectl apply -f THIS_FILE. Give it an image with roce, and a claim that all pods can write to.\n\
             # The claim is {MOUNT} in the pods, where the command runs: its relative paths are paths on the claim.\n\
             {needed}\n\
             # When the Job is done, in a pod with that claim: cd {MOUNT} && roce sim --merge {out}\n\
             apiVersion: batch/v1\n\
             kind: Job\n\
             metadata:\n\
             \x20 name: roce-sim\n\
             spec:\n\
             \x20 completionMode: Indexed\n\
             \x20 completions: {count}\n\
             \x20 parallelism: {parallel}\n\
             \x20 template:\n\
             \x20   spec:\n\
             \x20     restartPolicy: Never\n\
             \x20     containers:\n\
             \x20       - name: roce\n\
             \x20         image: IMAGE_WITH_ROCE\n\
             \x20         workingDir: {MOUNT}\n\
             \x20         command: [\"roce\", {arguments}, \"--index\", \"$(JOB_COMPLETION_INDEX)\"]\n\
             \x20         volumeMounts:\n\
             \x20           - {{ name: work, mountPath: {MOUNT} }}\n\
             \x20     volumes:\n\
             \x20       - name: work\n\
             \x20         persistentVolumeClaim: {{ claimName: roce-sim }}\n",
            out = quoted_path(self.out),
            count = self.count,
            parallel = self.count.min(64),
            arguments = arguments.join(", "),
        ))
    }
}

/// Where the claim is in the pods of a Job.
const MOUNT: &str = "/work";

/// Refuses what no pod could read or write: a path of this machine that is none on the claim.
fn check_on_claim(what: &str, path: &Path) -> anyhow::Result<()> {
    let goes_up = path.components().any(|part| part == Component::ParentDir);
    ensure!(
        !goes_up && (path.is_relative() || path.starts_with(MOUNT)),
        "{what} {} is not on the claim, which the pods of --emit kubernetes have at {MOUNT}; give a path below the \
         directory that is to be copied there, such as {}",
        path.display(),
        path.file_name().unwrap_or(path.as_os_str()).display()
    );
    Ok(())
}

/// The arguments behind the name of the program, without --emit and its value.
fn without_emit(arguments: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut skip = false;
    for argument in arguments.iter().skip(1) {
        if skip || argument.starts_with("--emit=") {
            skip = false;
        } else if argument == "--emit" {
            skip = true;
        } else {
            kept.push(argument.clone());
        }
    }
    kept
}

/// For a shell: in single quotes, unless it needs none.
fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', r"'\''"))
}

fn quoted_path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(system: System, out: &str, files: &[&str]) -> anyhow::Result<String> {
        let line = ["roce", "sim", "incast", "--sweep", "seed=1;2;3", "--out", out, "--emit", "slurm"];
        let (arguments, files) =
            (line.map(str::to_owned), files.iter().map(PathBuf::from).collect::<Vec<_>>());
        Job { out: Path::new(out), count: 3, arguments: &arguments, files: &files }.text(system)
    }

    #[test]
    fn slurm_runs_the_same_command() {
        let text = text(System::Slurm, "o", &[]).unwrap();
        assert!(text.contains("#SBATCH --array=0-2\n"), "{text}");
        let command = "exec roce sim incast --sweep 'seed=1;2;3' --out o --index \"$SLURM_ARRAY_TASK_ID\"\n";
        assert!(text.ends_with(command), "{text}");
    }

    #[test]
    fn kubernetes_too() {
        let text = text(System::Kubernetes, "o", &[]).unwrap();
        assert!(text.contains("  completions: 3\n"), "{text}");
        assert!(text.contains(
            "[\"roce\", \"sim\", \"incast\", \"--sweep\", \"seed=1;2;3\", \"--out\", \"o\", \"--index\","
        ));
    }

    #[test]
    fn a_job_of_kubernetes_says_what_has_to_be_on_its_claim() {
        let text = |files| text(System::Kubernetes, "o", files).unwrap();
        let some = text(&["small.toml", "my flows.txt"]);
        assert!(some.contains("as they lie here: small.toml 'my flows.txt'\n"), "{some}");
        assert!(text(&[]).contains("# Nothing has to be on the claim beforehand.\n"));
    }

    #[test]
    fn a_path_that_no_pod_has_is_refused() {
        let refused = |out, file| text(System::Kubernetes, out, &[file]).unwrap_err().to_string();
        let told = refused("/data/o", "small.toml");
        assert!(told.contains("--out /data/o is not on the claim") && told.ends_with("such as o"), "{told}");
        assert!(refused("o", "/home/me/small.toml").contains("the file /home/me/small.toml"));
        assert!(refused("../o", "small.toml").contains("../o"));
        assert!(refused("/work/../o", "small.toml").contains("/work/../o"));
        assert!(text(System::Kubernetes, "/work/o", &["/work/small.toml"]).is_ok());
        assert!(text(System::Slurm, "/data/o", &["/home/me/small.toml"]).is_ok());
    }

    #[test]
    fn quotes() {
        assert_eq!(quoted("a b'c"), r"'a b'\''c'");
        assert_eq!(quoted("seed=1,2"), "seed=1,2");
    }
}
