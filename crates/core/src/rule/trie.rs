//! Finds templates by walking along a path.
//!
//! Each node is one segment of some templates. A path reaches a node at most once, so a walk visits
//! at most as many nodes as there are templates that begin like the path.

use smallvec::SmallVec;

use super::hash::Table;
use super::template::{PathSegments, Template, TemplateSegment};

/// The templates of one condition.
#[derive(Clone, Debug)]
pub(super) struct Templates {
    /// In order of precedence.
    list: Vec<Template>,
    /// Their positions, if there are too many to try one by one.
    trie: Option<Trie>,
}

impl Templates {
    /// The most templates that are tried one by one.
    const FEW: usize = 8;

    pub(super) fn new(mut list: Vec<Template>) -> Self {
        list.sort_by(Template::precedence);
        let trie = (list.len() > Self::FEW).then(|| {
            let mut trie = Trie::default();
            (0..).zip(&list).for_each(|(at, template)| trie.insert(template, at));
            trie
        });
        Self { list, trie }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Template> {
        self.list.iter()
    }

    /// Finds the most specific one that matches.
    pub(super) fn find(&self, route: &PathSegments) -> Option<&Template> {
        let Some(trie) = &self.trie else {
            return self.list.iter().find(|template| template.matches(route));
        };
        let mut first = None;
        trie.walk(route, |at| first = Some(first.map_or(at, |first: usize| first.min(at))));
        self.list.get(first?)
    }
}

/// Templates, each with the number of its owner.
#[derive(Clone, Debug)]
pub(super) struct Trie {
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    literals: Table<Box<[u8]>, usize>,
    capture: Option<usize>,
    /// Owners of the templates that end here.
    ends: Vec<usize>,
    /// Owners of the templates with a `{*rest}` here.
    rests: Vec<usize>,
}

impl Default for Trie {
    fn default() -> Self {
        Self { nodes: vec![Node::default()] }
    }
}

impl Trie {
    /// Adds a template of this owner.
    pub(super) fn insert(&mut self, template: &Template, owner: usize) {
        let mut at = 0;
        for piece in template.pieces() {
            let fresh = self.nodes.len();
            let node = &mut self.nodes[at];
            at = match piece {
                TemplateSegment::Rest(_) => {
                    node.rests.push(owner);
                    return;
                }
                TemplateSegment::Capture(_) => *node.capture.get_or_insert(fresh),
                TemplateSegment::Literal(literal) => {
                    *node.literals.entry(literal.clone()).or_insert(fresh)
                }
            };
            if at == fresh {
                self.nodes.push(Node::default());
            }
        }
        self.nodes[at].ends.push(owner);
    }

    /// True if there are no templates.
    pub(super) fn is_empty(&self) -> bool {
        matches!(&*self.nodes, [root] if root.ends.is_empty() && root.rests.is_empty())
    }

    /// Calls `each` with the owners of all templates that match. An owner may come several times.
    pub(super) fn walk(&self, route: &PathSegments, mut each: impl FnMut(usize)) {
        let mut open: SmallVec<[(usize, usize); 8]> = SmallVec::new();
        open.push((0, 0));
        while let Some((at, depth)) = open.pop() {
            let node = &self.nodes[at];
            node.rests.iter().copied().for_each(&mut each);
            let Some(segment) = route.segment(depth) else {
                node.ends.iter().copied().for_each(&mut each);
                continue;
            };
            if let Some(child) = node.capture {
                open.push((child, depth + 1));
            }
            if let Some(child) = node.literals.get(segment) {
                open.push((*child, depth + 1));
            }
        }
    }
}
