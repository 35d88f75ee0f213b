//! `--figure`: one figure as a file, with its points beside it.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use roce_plot::{Figure, Width};
use roce_report::FigureKind;

use super::args::Args;

/// The figure to draw.
pub(super) struct FigureFile<'a> {
    pub(super) kind: FigureKind,
    width: Width,
    path: &'a Path,
    is_pdf: bool,
}

impl<'a> FigureFile<'a> {
    /// Returns the figure that the options ask for, and checks the name of its file.
    pub(super) fn of(args: &'a Args) -> anyhow::Result<Option<Self>> {
        let Some((kind, path)) = args.figure.zip(args.out.as_deref()) else { return Ok(None) };
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        let is_pdf = match ending {
            "svg" => false,
            "pdf" => true,
            _ => bail!(
                "--figure writes one file, but --out {} ends neither in .svg nor in .pdf; to keep the report of a \
                 sweep too, run with --out DIR first, then draw with --merge DIR --figure … --out FILE.pdf",
                path.display()
            ),
        };
        Ok(Some(Self { kind, width: args.figure_width.unwrap_or(Width::Column), path, is_pdf }))
    }

    /// Writes the figure and its table, and returns the paths of both as text.
    pub(super) fn write(&self, figure: &Figure) -> anyhow::Result<String> {
        let bytes =
            if self.is_pdf { figure.to_pdf(self.width) } else { figure.to_svg(self.width).into_bytes() };
        let table = self.path.with_extension("tsv");
        if let Some(parent) = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            let creating = || format!("cannot create the directory {}", parent.display());
            std::fs::create_dir_all(parent).with_context(creating)?;
        }
        let save = |path: &PathBuf, bytes: &[u8]| {
            std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
        };
        save(&self.path.to_owned(), &bytes)?;
        save(&table, figure.to_table().as_bytes())?;
        Ok(format!("{}, {}", self.path.display(), table.display()))
    }
}
