//! Dependencies between modules point down only. Parses every source file and looks at every path in it: `use` trees,
//! paths in code and types, and paths inside macro calls.

use proc_macro2::{TokenStream, TokenTree};
use std::fs;
use std::path::{Path, PathBuf};
use syn::visit::Visit;

/// The modules from the lowest to the highest. A module may use those before it, and itself.
const LAYERS: [&str; 14] = [
    "sys",
    "primitives",
    "clock",
    "env",
    "stats",
    "context",
    "fiber",
    "scheduler",
    "timer",
    "io",
    "sync",
    "hook",
    "runtime",
    "internals",
];

/// One use of a module by another.
#[derive(Debug, PartialEq)]
struct Edge {
    from: String,
    to: String,
    line: usize,
}

/// Collects the edges of one file.
struct Paths {
    /// The path of the module that the file is, without `crate`.
    module: Vec<String>,
    edges: Vec<Edge>,
}

impl Paths {
    /// Notes a path, given by its segments: `crate::..`, `super::..`, `self::..`, or one that begins with a module's name.
    fn note(&mut self, segments: &[String], line: usize) {
        let mut position = self.module.clone();
        let mut segments = segments.iter().map(String::as_str).peekable();
        match segments.peek() {
            Some(&"crate" | &"$crate") => position.clear(),
            Some(&"super" | &"self") => {}
            _ => return, // relative: it names something of this module, or of another crate
        }
        for segment in segments {
            match segment {
                "crate" | "$crate" => position.clear(),
                "self" => {}
                "super" => drop(position.pop()),
                name => {
                    position.push(name.to_owned());
                    break;
                }
            }
        }
        let Some(to) = position.first() else { return };
        // Names that the crate's root re-exports or defines as macros are not modules.
        if LAYERS.contains(&to.as_str()) {
            let (from, to) = (self.module[0].clone(), to.clone());
            self.edges.push(Edge { from, to, line });
        }
    }

    fn note_use(&mut self, prefix: &[String], tree: &syn::UseTree) {
        let with = |ident: &syn::Ident| [prefix, &[ident.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.note_use(&with(&path.ident), &path.tree),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.note_use(prefix, item)),
            syn::UseTree::Name(name) => self.note(&with(&name.ident), name.ident.span().start().line),
            syn::UseTree::Rename(rename) => self.note(&with(&rename.ident), rename.ident.span().start().line),
            syn::UseTree::Glob(glob) => self.note(prefix, glob.star_token.spans[0].start().line),
        }
    }

    /// Paths in the tokens of a macro call, which syn does not parse.
    fn note_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut line = 0;
        let mut after_colons = false;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) if path.is_empty() || after_colons => {
                    line = ident.span().start().line;
                    path.push(ident.to_string());
                    after_colons = false;
                }
                TokenTree::Ident(ident) => {
                    self.note(&std::mem::take(&mut path), line);
                    line = ident.span().start().line;
                    path.push(ident.to_string());
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => after_colons = !path.is_empty(),
                TokenTree::Group(group) => {
                    self.note(&std::mem::take(&mut path), line);
                    after_colons = false;
                    self.note_tokens(group.stream());
                }
                _ => {
                    self.note(&std::mem::take(&mut path), line);
                    after_colons = false;
                }
            }
        }
        self.note(&path, line);
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.note_use(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string())
            .collect();
        let line = path.segments[0].ident.span().start().line;
        self.note(&segments, line);
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.note_tokens(call.tokens.clone());
        syn::visit::visit_macro(self, call);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        // An inline module is one level further down.
        self.module.push(item.ident.to_string());
        syn::visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {
        // `pub(in crate::context)` says who may look in, not what is used.
    }
}

fn edges_of(module: &[String], source: &str) -> Vec<Edge> {
    let file = syn::parse_file(source).expect("the file is Rust");
    let mut paths = Paths {
        module: module.to_vec(),
        edges: Vec::new(),
    };
    paths.visit_file(&file);
    paths.edges
}

fn layer(module: &str) -> usize {
    LAYERS
        .iter()
        .position(|name| *name == module)
        .unwrap_or_else(|| panic!("module {module} has no place in LAYERS: give it one"))
}

fn upward(edges: Vec<Edge>) -> Vec<Edge> {
    edges
        .into_iter()
        .filter(|edge| layer(&edge.to) > layer(&edge.from))
        .collect()
}

fn source_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            source_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The path of the module that a file holds: `fiber/mod.rs` is `[fiber]`, `fiber/local.rs` is `[fiber, local]`.
fn module_of(file: &Path, root: &Path) -> Vec<String> {
    let relative = file.strip_prefix(root).unwrap().with_extension("");
    let mut module: Vec<_> = relative
        .iter()
        .map(|part| part.to_str().unwrap().to_owned())
        .collect();
    if module.last().is_some_and(|last| last == "mod") {
        module.pop();
    }
    module
}

#[test]
fn modules_only_use_what_is_below_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    source_files(&root, &mut files);
    assert!(files.len() > 15, "{files:?}");
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| !file.ends_with("lib.rs")) {
        let edges = edges_of(&module_of(file, &root), &fs::read_to_string(file).unwrap());
        for Edge { from, to, line } in upward(edges) {
            faults.push(format!(
                "{}:{line}: {from} uses {to}, which is above it",
                file.display()
            ));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn the_checker_sees_every_kind_of_path() {
    let module = |path: &str| path.split("::").map(str::to_owned).collect::<Vec<_>>();
    let upward_in = |path: &str, source: &str| upward(edges_of(&module(path), source)).len();
    for source in [
        "use crate::fiber;",
        "use crate::fiber::Fiber;",
        "use crate::{env, fiber::{self, Fiber}};",
        "use super::super::fiber::Fiber;",
        "pub(crate) use crate::fiber::*;",
        "fn f() { crate::fiber::suspend(); }",
        "fn f() { super::super::fiber::suspend(); }",
        "fn f(_: &crate::fiber::Fiber) {}",
        "impl From<crate::fiber::Fiber> for u8 {}",
        "fn f() { println!(\"{}\", crate::fiber::live_count()); }",
        "mod inner { use super::super::super::fiber; }",
        "mod inner { fn f() { vec![super::super::super::fiber::suspend()]; } }",
    ] {
        assert!(upward_in("context::stack", source) >= 1, "not seen: {source}");
    }
    for source in [
        "use crate::stats::Counters;",
        "use super::sanitizer; use self::region::Region; use crate::context::arch;",
        "fn f() { fiber::suspend(); crate::env::settings(); }",
        "pub(in crate::fiber) struct S;",
    ] {
        assert_eq!(upward_in("context::stack", source), 0, "{source}");
    }
    assert_eq!(upward_in("fiber", "use crate::context::Context;"), 0);
}
