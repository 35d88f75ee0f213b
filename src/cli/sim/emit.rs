//! Jobs for many machines: the same command once per combination of a sweep.

use std::path::Path;

/// What the job is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum System {
    /// An array job for sbatch
    Slurm,
    /// An indexed Job for kubectl apply
    Kubernetes,
}

/// The text of a job with `count` indexes that runs the command of `arguments` for each, and says how to merge.
pub(super) fn job(system: System, out: Option<&Path>, count: usize, arguments: &[String]) -> String {
    let out = out.map_or_else(String::new, |out| out.display().to_string());
    let kept = without_emit(arguments);
    match system {
        System::Slurm => slurm(&out, count, &kept),
        System::Kubernetes => kubernetes(&out, count, &kept),
    }
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

fn slurm(out: &str, count: usize, arguments: &[String]) -> String {
    let command: Vec<String> = arguments.iter().map(|argument| quoted(argument)).collect();
    let (command, out, last) = (command.join(" "), quoted(out), count.saturating_sub(1));
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

fn kubernetes(out: &str, count: usize, arguments: &[String]) -> String {
    // JSON strings are YAML strings.
    let arguments: Vec<String> =
        arguments.iter().map(|argument| serde_json::Value::from(argument.as_str()).to_string()).collect();
    let arguments = arguments.join(", ");
    let out = quoted(out);
    format!(
        "# Apply with: kubectl apply -f THIS_FILE. Give it an image with roce, and a claim that all pods can write to,\n\
         # mounted where --out lies. When the Job is done, in a pod with that claim: roce sim --merge {out}\n\
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
         \x20         workingDir: /work\n\
         \x20         command: [\"roce\", {arguments}, \"--index\", \"$(JOB_COMPLETION_INDEX)\"]\n\
         \x20         volumeMounts:\n\
         \x20           - {{ name: work, mountPath: /work }}\n\
         \x20     volumes:\n\
         \x20       - name: work\n\
         \x20         persistentVolumeClaim: {{ claimName: roce-sim }}\n",
        parallel = count.min(64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments() -> Vec<String> {
        let line = ["roce", "sim", "incast", "--sweep", "seed=1;2;3", "--out", "o", "--emit", "slurm"];
        line.map(str::to_owned).to_vec()
    }

    #[test]
    fn slurm_runs_the_same_command() {
        let text = job(System::Slurm, Some(Path::new("o")), 3, &arguments());
        assert!(text.contains("#SBATCH --array=0-2\n"), "{text}");
        let command = "exec roce sim incast --sweep 'seed=1;2;3' --out o --index \"$SLURM_ARRAY_TASK_ID\"\n";
        assert!(text.ends_with(command), "{text}");
    }

    #[test]
    fn kubernetes_too() {
        let text = job(System::Kubernetes, Some(Path::new("o")), 3, &arguments());
        assert!(text.contains("  completions: 3\n"), "{text}");
        assert!(text.contains(
            "[\"roce\", \"sim\", \"incast\", \"--sweep\", \"seed=1;2;3\", \"--out\", \"o\", \"--index\","
        ));
    }

    #[test]
    fn quotes() {
        assert_eq!(quoted("a b'c"), r"'a b'\''c'");
        assert_eq!(quoted("seed=1,2"), "seed=1,2");
    }
}
