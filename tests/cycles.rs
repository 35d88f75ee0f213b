//! Tests that the modules of each crate depend on each other in one direction.
//!
//! The nodes of the graph are the files of a crate. A file depends on another one if its code names something
//! that the other one defines: in a `use`, in a path, or in the body of a macro. A `mod` declaration and a
//! re-export are no dependencies, and a name leads to its definition even if it is re-exported. Calls of
//! methods are not seen, so a module may add methods to a type of a module below it. Tests do not count.
//!
//! A cycle is a set of files that all depend on each other, directly or through other files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Maximum number of names that a message prints for a dependency.
const MOST_NAMES: usize = 5;

#[test]
fn no_file_depends_on_itself() {
    let crates = crates();
    assert!(crates.len() > 10, "{crates:?}");
    let mut wrong = Vec::new();
    for folder in &crates {
        let graphs = roots(folder).map(|file| Crate::read(&file, &|path| fs::read_to_string(path).ok()));
        let largest = graphs.map(|graph| graph.largest_cycle()).max_by_key(|cycle| cycle.files.len());
        let largest = largest.unwrap_or_else(|| panic!("{folder} has neither src/lib.rs nor src/main.rs"));
        wrong.extend(problem(folder, &largest));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the folders of all crates; that of the root crate is empty.
fn crates() -> BTreeSet<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    let lists = ["members", "exclude"].map(|key| {
        let (_, list) = manifest.split_once(&format!("\n{key} = [")).expect("a list");
        let list = list.split(']').next().unwrap_or_default();
        list.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()
    });
    lists.concat().into_iter().chain([String::new()]).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the root files of a crate.
fn roots(folder: &str) -> impl Iterator<Item = PathBuf> {
    let sources = root().join(folder).join("src");
    ["lib.rs", "main.rs"].into_iter().map(move |name| sources.join(name)).filter(|file| file.is_file())
}

/// Returns the problem of a crate with this largest cycle.
fn problem(folder: &str, cycle: &Cycle) -> Option<String> {
    let name = if folder.is_empty() { "the root crate" } else { folder };
    let size = cycle.files.len();
    (size > 1).then(|| {
        format!(
            "{name}: {size} files depend on each other. Move what both sides need into a module below them, or \
             move a function up. The cycle:\n{}",
            cycle.dependencies.join("\n")
        )
    })
}

/// A set of files that depend on each other.
#[derive(Default)]
struct Cycle {
    files: Vec<PathBuf>,
    /// For each dependency between them: both files, and names.
    dependencies: Vec<String>,
}

/// The names of a path, such as `["super", "error", "Error"]`.
type Names = Vec<String>;

/// A module of a crate. An inline module has the file of its parent.
#[derive(Default)]
struct Module {
    parent: Option<usize>,
    file: PathBuf,
    children: BTreeMap<String, usize>,
    /// Names of the types, functions, macros and other items that are defined here.
    items: BTreeSet<String>,
    macros: BTreeSet<String>,
    /// Paths of the imported names, by the names that they have here.
    imports: BTreeMap<String, Names>,
    /// Names of the imports that are re-exports.
    exports: BTreeSet<String>,
    /// Paths of modules or enums of which everything is imported.
    globs: Vec<Names>,
    /// Paths in code, and those of imports that are not re-exports.
    paths: BTreeSet<Names>,
    /// Identifiers in code that do not follow `::` or a dot.
    words: BTreeSet<String>,
    /// Names of the macros that code calls without a path.
    calls: BTreeSet<String>,
}

/// What a path leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Target {
    Module(usize),
    /// An item in this file.
    Item(PathBuf),
}

/// The modules of a crate; the first one is its root.
#[derive(Default)]
struct Crate {
    modules: Vec<Module>,
}

/// Reads a file, or returns `None` if it does not exist.
type Load<'a> = &'a dyn Fn(&Path) -> Option<String>;

impl Crate {
    /// Reads a crate from its root file on.
    fn read(file: &Path, load: Load<'_>) -> Self {
        let mut all = Self::default();
        let text = load(file).unwrap_or_else(|| panic!("{} does not exist", file.display()));
        all.add_file(None, file, file.parent().unwrap_or(file), &text, load);
        all
    }

    /// Adds the module of a file, whose children are in `folder`.
    fn add_file(
        &mut self,
        parent: Option<usize>,
        file: &Path,
        folder: &Path,
        text: &str,
        load: Load<'_>,
    ) -> usize {
        let module = self.modules.len();
        self.modules.push(Module { parent, file: file.to_owned(), ..Module::default() });
        let tokens: TokenStream = text.parse().unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.read_tokens(module, &trees(tokens), Some(folder), load);
        module
    }

    /// Reads code. At the level of a module, `folder` contains the files of its children.
    fn read_tokens(&mut self, module: usize, tokens: &[TokenTree], folder: Option<&Path>, load: Load<'_>) {
        let mut at = 0;
        let mut is_exported = false;
        let mut path = None;
        while at < tokens.len() {
            let rest = &tokens[at..];
            let next = rest.get(1);
            match (word(&rest[0]).as_deref(), next) {
                _ if is_attribute(rest) => {
                    path = path.or_else(|| path_of(rest));
                    at += if is_left_out(rest) { item_len(rest) } else { attribute_len(rest) };
                    continue;
                }
                (Some("pub"), _) => {
                    is_exported = true;
                    at += if next.is_some_and(is_restriction) { 2 } else { 1 };
                    continue;
                }
                (Some("mod"), Some(name)) if folder.is_some() => {
                    let folder = folder.unwrap_or(Path::new(""));
                    self.add_child(module, &name.to_string(), path.as_deref(), rest.get(2), folder, load);
                    at += 3;
                }
                (Some("use"), Some(path)) if !is_mark(path, '<') => {
                    let len = rest.iter().take_while(|tree| !is_mark(tree, ';')).count();
                    self.add_imports(module, &rest[1..len], folder.is_some().then_some(is_exported));
                    at += len;
                }
                (Some("macro_rules"), Some(_)) => {
                    let name = rest.get(2).map(ToString::to_string).unwrap_or_default();
                    self.modules[module].macros.insert(name.clone());
                    self.modules[module].items.insert(name);
                    at += 3;
                }
                _ => at += self.read_code(module, tokens, at, folder.is_some(), load),
            }
            is_exported = false;
            path = None;
        }
    }

    /// Reads one token or path of code, and returns the number of tokens.
    fn read_code(
        &mut self,
        module: usize,
        tokens: &[TokenTree],
        at: usize,
        is_module_level: bool,
        load: Load<'_>,
    ) -> usize {
        if let TokenTree::Group(group) = &tokens[at] {
            self.read_tokens(module, &trees(group.stream()), None, load);
        }
        let Some(first) = word(&tokens[at]) else { return 1 };
        let is_field = after(tokens, at, ".") && !after(tokens, at, "..");
        if is_field || after(tokens, at, "'") || after(tokens, at, "::") {
            return 1;
        }
        let own = &mut self.modules[module];
        if is_module_level
            && defines(&first)
            && let Some(name) = tokens.get(at + 1).and_then(word)
        {
            own.items.insert(name);
        }
        let (names, len) = path_at(&tokens[at..]);
        own.words.insert(first.clone());
        if names.len() > 1 {
            own.paths.insert(names);
        } else if tokens.get(at + 1).is_some_and(|tree| is_mark(tree, '!')) {
            own.calls.insert(first);
        }
        len
    }

    /// Adds the child of a `mod` declaration: inline, or in a file of its own. `path` is its attribute.
    fn add_child(
        &mut self,
        parent: usize,
        name: &str,
        path: Option<&str>,
        body: Option<&TokenTree>,
        folder: &Path,
        load: Load<'_>,
    ) {
        let is_inline = matches!(body, Some(TokenTree::Group(_)));
        let inside = match path {
            Some(".") if is_inline => folder.to_owned(),
            Some(path) if is_inline => folder.join(path),
            _ => folder.join(name),
        };
        let child = if let Some(TokenTree::Group(group)) = body {
            let file = self.modules[parent].file.clone();
            self.modules.push(Module { parent: Some(parent), file, ..Module::default() });
            let child = self.modules.len() - 1;
            self.read_tokens(child, &trees(group.stream()), Some(&inside), load);
            child
        } else {
            let own = path.map_or_else(|| format!("{name}.rs"), str::to_owned);
            let files = [folder.join(own), inside.join("mod.rs")];
            let found = files.into_iter().find_map(|file| load(&file).map(|text| (file, text)));
            let (file, text) = found.unwrap_or_else(|| panic!("the module {} has no file", inside.display()));
            self.add_file(Some(parent), &file, &inside, &text, load)
        };
        self.modules[parent].children.insert(name.to_owned(), child);
    }

    /// Adds the imports of a `use`. Inside of functions, `is_exported` is `None`.
    fn add_imports(&mut self, module: usize, tokens: &[TokenTree], is_exported: Option<bool>) {
        let own = &mut self.modules[module];
        for (path, name) in imports(tokens, &[]) {
            if name == "*" {
                own.globs.push(path);
                continue;
            }
            if is_exported.is_some() && name != "_" {
                own.imports.insert(name.clone(), path.clone());
            }
            if is_exported == Some(true) {
                own.exports.insert(name);
            } else {
                own.paths.insert(path);
            }
        }
    }

    /// Finds a name in a module: a child, an item, or an import. `seen` prevents endless loops.
    fn find(&self, module: usize, name: &str, seen: &mut BTreeSet<(usize, String)>) -> Option<Target> {
        if !seen.insert((module, name.to_owned())) {
            return None;
        }
        let own = &self.modules[module];
        if let Some(child) = own.children.get(name) {
            return Some(Target::Module(*child));
        }
        if own.items.contains(name) {
            return Some(Target::Item(own.file.clone()));
        }
        if let Some(path) = own.imports.get(name) {
            return self.resolve(module, path, seen);
        }
        own.globs.iter().find_map(|glob| match self.resolve(module, glob, seen)? {
            Target::Module(inside) => self.find(inside, name, seen),
            item @ Target::Item(_) => Some(item).filter(|_| name.starts_with(char::is_uppercase)),
        })
    }

    /// Returns what a path leads to; `None` if it leads to another crate.
    fn resolve(
        &self,
        module: usize,
        path: &[String],
        seen: &mut BTreeSet<(usize, String)>,
    ) -> Option<Target> {
        let (mut at, mut is_inside) = (module, true);
        for (index, name) in path.iter().enumerate() {
            match name.as_str() {
                "crate" if index == 0 => at = 0,
                "self" if index == 0 => {}
                "super" => at = self.modules[at].parent?,
                name => match self.find(at, name, seen) {
                    Some(Target::Module(child)) => at = child,
                    Some(item) => return Some(item),
                    // A macro may define the name.
                    None => return (!is_inside).then(|| Target::Item(self.modules[at].file.clone())),
                },
            }
            is_inside = false;
        }
        Some(Target::Module(at))
    }

    /// Returns the files that each file depends on, with the names that it uses.
    fn dependencies(&self) -> BTreeMap<&Path, BTreeMap<PathBuf, BTreeSet<String>>> {
        let mut all: BTreeMap<&Path, BTreeMap<PathBuf, BTreeSet<String>>> = BTreeMap::new();
        for (module, own) in self.modules.iter().enumerate() {
            let found = all.entry(&own.file).or_default();
            let mut add = |target: Option<Target>, name: String| {
                if let Some(Target::Item(file)) = target
                    && file != own.file
                {
                    found.entry(file).or_default().insert(name);
                }
            };
            let used = own.exports.iter().filter(|name| own.words.contains(*name));
            let exported = used.filter_map(|name| own.imports.get(name));
            for path in own.paths.iter().chain(exported) {
                add(self.resolve(module, path, &mut BTreeSet::new()), path.join("::"));
            }
            // Without this, the module of a glob would depend on nothing.
            let through_globs = own.words.iter().filter(|word| {
                !own.items.contains(*word)
                    && !own.children.contains_key(*word)
                    && !own.imports.contains_key(*word)
            });
            for word in through_globs.filter(|_| !own.globs.is_empty()) {
                add(self.find(module, word, &mut BTreeSet::new()), word.clone());
            }
            for name in &own.calls {
                let definition = std::iter::successors(Some(module), |module| self.modules[*module].parent)
                    .find(|module| self.modules[*module].macros.contains(name));
                add(
                    definition.map(|module| Target::Item(self.modules[module].file.clone())),
                    format!("{name}!"),
                );
            }
        }
        all
    }

    /// Returns the largest cycle. Without a cycle it consists of one file.
    fn largest_cycle(&self) -> Cycle {
        let all = self.dependencies();
        let reach = |from: &Path| {
            let (mut found, mut open) = (BTreeSet::new(), vec![from.to_owned()]);
            while let Some(file) = open.pop() {
                for next in all.get(file.as_path()).into_iter().flat_map(BTreeMap::keys) {
                    if found.insert(next.clone()) {
                        open.push(next.clone());
                    }
                }
            }
            found
        };
        let reached: BTreeMap<&Path, BTreeSet<PathBuf>> =
            all.keys().map(|file| (*file, reach(file))).collect();
        let cycle_of = |file: &Path| -> Vec<PathBuf> {
            let both = reached[file].iter().filter(|other| reached[other.as_path()].contains(file));
            if reached[file].contains(file) { both.cloned().collect() } else { vec![file.to_owned()] }
        };
        let files = all.keys().map(|file| cycle_of(file)).max_by_key(Vec::len).unwrap_or_default();
        let folder = self.modules.first().and_then(|root| root.file.parent()).unwrap_or(Path::new(""));
        let short = |file: &Path| file.strip_prefix(folder).unwrap_or(file).display().to_string();
        let mut dependencies = Vec::new();
        for (from, to, names) in files.iter().flat_map(|from| {
            let all = all.get(from.as_path()).into_iter().flatten();
            all.map(move |(to, names)| (from, to, names))
        }) {
            if files.contains(to) {
                let names: Vec<&str> = names.iter().take(MOST_NAMES).map(String::as_str).collect();
                dependencies.push(format!("  {} -> {}: {}", short(from), short(to), names.join(", ")));
            }
        }
        Cycle { files, dependencies }
    }
}

fn trees(tokens: TokenStream) -> Vec<TokenTree> {
    tokens.into_iter().collect()
}

fn word(tree: &TokenTree) -> Option<String> {
    if let TokenTree::Ident(name) = tree { Some(name.to_string()) } else { None }
}

fn is_mark(tree: &TokenTree, mark: char) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == mark)
}

/// Returns whether these marks precede a token.
fn after(tokens: &[TokenTree], at: usize, marks: &str) -> bool {
    let before = at.checked_sub(marks.len()).and_then(|begin| tokens.get(begin..at));
    before.is_some_and(|before| before.iter().zip(marks.chars()).all(|(tree, mark)| is_mark(tree, mark)))
}

fn defines(keyword: &str) -> bool {
    ["const", "enum", "fn", "static", "struct", "trait", "type", "union"].contains(&keyword)
}

/// Returns the names of the path at the start of the tokens, and its number of tokens.
fn path_at(tokens: &[TokenTree]) -> (Names, usize) {
    let mut names: Names = tokens.first().and_then(word).into_iter().collect();
    let mut len = 1;
    while let [first, second, name, ..] = &tokens[len..]
        && is_mark(first, ':')
        && is_mark(second, ':')
        && let Some(name) = word(name)
    {
        names.push(name);
        len += 3;
    }
    (names, len)
}

/// Returns the paths of a `use`, and the name of each in its module; `*` for everything.
fn imports(tokens: &[TokenTree], prefix: &[String]) -> Vec<(Names, String)> {
    let mut all = Vec::new();
    for part in tokens.split(|tree| is_mark(tree, ',')) {
        let (mut path, mut name) = (prefix.to_vec(), None);
        let mut trees = part.iter().peekable();
        while let Some(tree) = trees.next() {
            match tree {
                TokenTree::Group(group) => all.extend(imports(&trees_of(group), &path)),
                TokenTree::Ident(word) if *word == "as" => name = trees.next().map(ToString::to_string),
                TokenTree::Ident(word) => path.push(word.to_string()),
                tree if is_mark(tree, '*') => name = Some("*".to_owned()),
                _ => continue,
            }
        }
        if matches!(part.last(), None | Some(TokenTree::Group(_))) {
            continue;
        }
        // `use a::{self}`
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let last = path.last().cloned().unwrap_or_default();
        all.push((path, name.unwrap_or(last)));
    }
    all
}

fn trees_of(group: &proc_macro2::Group) -> Vec<TokenTree> {
    trees(group.stream())
}

fn is_attribute(tokens: &[TokenTree]) -> bool {
    attribute_len(tokens) > 0
}

/// Returns the number of tokens of the attribute at the start; 0 without one.
fn attribute_len(tokens: &[TokenTree]) -> usize {
    let is_list =
        |tree: &TokenTree| matches!(tree, TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket);
    match tokens {
        [mark, list, ..] if is_mark(mark, '#') && is_list(list) => 2,
        [mark, inner, list, ..] if is_mark(mark, '#') && is_mark(inner, '!') && is_list(list) => 3,
        _ => 0,
    }
}

/// Returns the text of an attribute without spaces.
fn attribute_text(tokens: &[TokenTree]) -> String {
    let Some(TokenTree::Group(list)) = tokens.get(1) else { return String::new() };
    list.stream().to_string().chars().filter(|letter| !letter.is_whitespace()).collect()
}

/// Returns whether an item with this attribute belongs to tests, or to systems other than Linux.
fn is_left_out(tokens: &[TokenTree]) -> bool {
    const CONDITIONS: [&str; 5] =
        ["cfg(test)", "cfg(all(test,", "cfg(any(test,not(target_os=", "cfg(not(target_os=", "cfg(not(unix))"];
    let text = attribute_text(tokens);
    CONDITIONS.iter().any(|condition| text.starts_with(condition))
}

/// Returns the path in the attribute of a module, which may be for Linux alone.
fn path_of(tokens: &[TokenTree]) -> Option<String> {
    let text = attribute_text(tokens);
    let path = text.strip_prefix("path=").or_else(|| {
        let (condition, path) = text.strip_prefix("cfg_attr(")?.rsplit_once(",path=")?;
        (!condition.starts_with("not(")).then_some(path)
    })?;
    path.split('"').nth(1).map(str::to_owned)
}

/// Returns the number of tokens up to the end of the item at the start.
fn item_len(tokens: &[TokenTree]) -> usize {
    let is_end = |tree: &TokenTree| match tree {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        tree => is_mark(tree, ';') || is_mark(tree, ','),
    };
    tokens.iter().position(is_end).map_or(tokens.len(), |end| end + 1)
}

/// Returns whether a group after `pub` restricts the visibility, as in `pub(super)`.
fn is_restriction(tree: &TokenTree) -> bool {
    let TokenTree::Group(group) = tree else { return false };
    let first = group.stream().into_iter().next().and_then(|tree| word(&tree));
    group.delimiter() == Delimiter::Parenthesis
        && first.is_some_and(|word| ["crate", "in", "self", "super"].contains(&word.as_str()))
}

/// Returns the largest cycle of a crate with these files; the first one is its root.
fn cycle_of(files: &[(&str, &str)]) -> Cycle {
    let find = |path: &Path| files.iter().find(|(name, _)| Path::new(name) == path);
    Crate::read(Path::new(files[0].0), &|path| find(path).map(|(_, text)| (*text).to_owned())).largest_cycle()
}

#[test]
fn cycles_are_found_with_their_names() {
    let found = cycle_of(&[
        ("lib.rs", "mod a; mod b; mod c; pub use a::A; fn x() { c::f() }"),
        ("a.rs", "use super::b::B; pub struct A(B);"),
        ("b/mod.rs", "mod inside; pub struct B; pub(crate) fn f() { let _ = inside::C; }"),
        ("b/inside.rs", "pub(super) const C: u8 = 0; fn g() { drop(vec![crate::A::new()]) }"),
        ("c.rs", "use crate::A; pub(crate) fn f() {}"),
    ]);
    assert_eq!(found.files, ["a.rs", "b/inside.rs", "b/mod.rs"].map(PathBuf::from));
    let expected = ["a.rs -> b/mod.rs: super::b::B", "b/inside.rs -> a.rs: crate::A::new", "inside::C"];
    for (line, part) in found.dependencies.iter().zip(expected) {
        assert!(line.contains(part), "{line}");
    }
    assert_eq!(found.dependencies.len(), 3);
    let problem = problem("x", &found).expect("a problem");
    assert!(problem.contains("x: 3 files depend on each other") && problem.contains("-> a.rs"), "{problem}");
}

#[test]
fn globs_macros_and_aliases_are_dependencies() {
    let root = "#[macro_use] mod m; mod a; mod b; pub use b as other;";
    let find = |a: &str, b: &str| {
        let m = "macro_rules! one { () => { 1 } } pub(crate) fn f() { crate::a::f() }";
        cycle_of(&[("lib.rs", root), ("m.rs", m), ("a.rs", a), ("b.rs", b)]).files.len()
    };
    assert_eq!(find("use super::other::*; pub fn f() -> B { B }", "pub struct B; use crate::a::f;"), 2);
    assert_eq!(find("use crate::other as o; pub fn f() { o::g() }", "pub fn g() { super::a::f() }"), 2);
    assert_eq!(
        find("macro_rules! m { () => { $crate::b::g() } } pub fn f() {}", "pub fn g() { crate::a::f() }"),
        2
    );
    assert_eq!(find("use super::*; pub fn f() { m::f() }", ""), 2);
    assert_eq!(
        find("pub fn f() { use super::b::{self, g as h}; b::g() }", "pub fn g() { crate::a::f() }"),
        2
    );
    assert_eq!(find("pub fn f() { crate::b::g() }", "pub fn g() {}"), 1);
}

#[test]
fn paths_of_modules_are_followed_and_other_systems_do_not_count() {
    let root = "#[cfg_attr(not(unix), path = \"none.rs\")] #[cfg_attr(unix, path = \"p/unix.rs\")] mod p;\n\
                #[path = \".\"] mod n { use super::p; mod a; mod b; } #[cfg(not(unix))] mod none;";
    let files = |b| {
        [
            ("lib.rs", root),
            ("p/unix.rs", ""),
            ("a.rs", "use super::p; use super::b::B; pub struct A;"),
            ("b.rs", b),
        ]
    };
    assert_eq!(cycle_of(&files("pub struct B;")).files.len(), 1);
    assert_eq!(
        cycle_of(&files("pub struct B; use crate::n::a::A;")).files,
        ["a.rs", "b.rs"].map(PathBuf::from)
    );
}

#[test]
fn declarations_exports_tests_and_texts_are_no_dependencies() {
    let found = cycle_of(&[
        ("lib.rs", "//! `a::A`\nmod a; pub use a::A; pub struct Root; pub(in crate::a) struct Own;"),
        (
            "a.rs",
            "/// crate::b\npub struct A(crate::Root);\n// super::x\nconst T: &str = \"super::y\";\n\
             fn f<'a>(text: &'a str) {}\n#[cfg(test)] use crate::b::B;\n#[cfg(test)] mod tests { use super::b; }",
        ),
    ]);
    assert_eq!(found.files.len(), 1, "{:?}", found.dependencies);
    assert_eq!(problem("x", &found), None);
}
