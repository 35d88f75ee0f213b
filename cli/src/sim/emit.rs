//! Job files for clusters, which run the same command once per combination of a sweep.

use std::path::{Component, Path, PathBuf};

use anyhow::ensure;

/// The system that runs the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum System {
    /// An array job for sbatch
    Slurm,
    /// An indexed Job for kubectl apply
    Kubernetes,
}

/// A sweep to run on a cluster.
pub(super) struct Job<'a> {
    /// Directory of the reports.
    pub(super) out: &'a Path,
    /// Number of combinations.
    pub(super) count: usize,
    /// The command line.
    pub(super) arguments: &'a [String],
    /// Files that the runs read.
    pub(super) files: &'a [PathBuf],
}

impl Job<'_> {
    /// Returns the job file, which runs the command for each index and explains how to merge the results.
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
             # Submit with: sbatch THIS_FILE. When the array has finished, run in the same directory: roce sim --merge {out}\n\
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
            "# No files need to be copied to the claim first.".to_owned()
        } else {
            format!("# First, copy these files to the claim, with the same paths: {}", files.join(" "))
        };
        Ok(format!(
            "# Apply with: kubectl apply -f THIS_FILE. It needs an image that contains roce, and a claim that all pods can write to.\n\
             # The pods mount the claim at {MOUNT} and run the command there: relative paths are paths on the claim.\n\
             {needed}\n\
             # When the Job has finished, run in a pod with the claim: cd {MOUNT} && roce sim --merge {out}\n\
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

/// Mount path of the claim in the pods.
const MOUNT: &str = "/work";

/// Rejects paths that are not on the claim, which the pods cannot access.
fn check_on_claim(what: &str, path: &Path) -> anyhow::Result<()> {
    let goes_up = path.components().any(|part| part == Component::ParentDir);
    ensure!(
        !goes_up && (path.is_relative() || path.starts_with(MOUNT)),
        "{what} {} is not on the claim, which the pods of --emit kubernetes mount at {MOUNT}; give a path relative to \
         the directory that is copied there, such as {}",
        path.display(),
        path.file_name().unwrap_or(path.as_os_str()).display()
    );
    Ok(())
}

/// Returns the arguments after the program name, without --emit and its value.
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

/// Quotes an argument for a shell if necessary.
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
    fn kubernetes_runs_the_same_command() {
        let text = text(System::Kubernetes, "o", &[]).unwrap();
        assert!(text.contains("  completions: 3\n"), "{text}");
        assert!(text.contains(
            "[\"roce\", \"sim\", \"incast\", \"--sweep\", \"seed=1;2;3\", \"--out\", \"o\", \"--index\","
        ));
    }

    #[test]
    fn a_kubernetes_job_lists_the_files_to_copy() {
        let text = |files| text(System::Kubernetes, "o", files).unwrap();
        let some = text(&["small.toml", "my flows.txt"]);
        assert!(some.contains("with the same paths: small.toml 'my flows.txt'\n"), "{some}");
        assert!(text(&[]).contains("# No files need to be copied to the claim first.\n"));
    }

    #[test]
    fn a_path_outside_the_claim_is_rejected() {
        let refused = |out, file| text(System::Kubernetes, out, &[file]).unwrap_err().to_string();
        let error = refused("/data/o", "small.toml");
        assert!(
            error.contains("--out /data/o is not on the claim") && error.ends_with("such as o"),
            "{error}"
        );
        assert!(refused("o", "/home/me/small.toml").contains("the file /home/me/small.toml"));
        assert!(refused("../o", "small.toml").contains("../o"));
        assert!(refused("/work/../o", "small.toml").contains("/work/../o"));
        assert!(text(System::Kubernetes, "/work/o", &["/work/small.toml"]).is_ok());
        assert!(text(System::Slurm, "/data/o", &["/home/me/small.toml"]).is_ok());
    }

    #[test]
    fn arguments_are_quoted_for_a_shell() {
        assert_eq!(quoted("a b'c"), r"'a b'\''c'");
        assert_eq!(quoted("seed=1,2"), "seed=1,2");
    }
}
