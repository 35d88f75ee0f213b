//! Finding the scenario of a network: a text, a file or a shipped scenario.

use std::ffi::CStr;
use std::path::{Path, PathBuf};

use roce_machine::text_file::read_text;
use roce_scenario::{Scenario, shipped};
use roce_sim::net::Network;
use roce_transport::with_causes;

/// The text of a scenario, its name in errors, and the folder of the files that it names.
struct Source {
    name: String,
    text: String,
    folder: PathBuf,
}

/// Builds the network of a scenario. Returns a text for people if this is not possible.
pub(crate) fn network(scenario: &CStr) -> Result<Network, String> {
    let scenario = scenario.to_str().map_err(|_| "the scenario is not UTF-8 text".to_owned())?;
    let source = find(scenario)?;
    let load = |file: &str| {
        let path = source.folder.join(file);
        read_text(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    let wrong = |reason: String| format!("{}: {reason}", source.name);
    let scenario = Scenario::parse_network(&source.text, &load).map_err(|error| wrong(error.to_string()))?;
    scenario.network().map_err(|error| wrong(with_causes(&error).to_string()))
}

/// A text with a line break is a scenario; another one is the path of a file or the name of a shipped
/// scenario.
fn find(scenario: &str) -> Result<Source, String> {
    if scenario.contains('\n') {
        let (name, text) = ("the scenario".to_owned(), scenario.to_owned());
        return Ok(Source { name, text, folder: PathBuf::new() });
    }
    let (name, path) = (scenario.to_owned(), Path::new(scenario));
    if let Some(text) = shipped(scenario).filter(|_| !path.is_file()) {
        return Ok(Source { name, text: text.to_owned(), folder: PathBuf::new() });
    }
    let text = read_text(path).map_err(|error| {
        format!("cannot read the scenario {scenario}: {error}; a text needs a line break to be taken for a scenario")
    })?;
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    Ok(Source { name, text, folder })
}
