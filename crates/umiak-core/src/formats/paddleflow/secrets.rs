//! Secret parameters: by their name, or because a secret variable is filled from them.

use std::collections::{HashMap, HashSet};

use super::graph::{Field, Graph, Meaning};
use super::literal;
use super::raw::{Home, RawBody};
use super::template::templates;
use crate::diag::Span;
use crate::formats::document::tree::Node;
use crate::mask::{self, Known};
use crate::model::Value;
use crate::pipeline::text;

/// A component and a parameter of it.
type Secret = (usize, String);

/// Where values of secret parameters are written, and which they are.
pub(super) fn places(graph: &Graph<'_, '_>) -> (Vec<Span>, HashSet<Secret>) {
    let mut found: HashSet<Secret> = HashSet::new();
    let mut next: Vec<Secret> = Vec::new();
    for (at, component) in graph.raw.all.iter().enumerate() {
        let named = component.parameters.iter().filter(|one| mask::is_secret(&one.name.value));
        next.extend(named.map(|one| (at, one.name.value.clone())));
        if let RawBody::Step(step) = &component.body {
            for variable in step.env.iter().filter(|variable| mask::is_secret(&variable.name.value)) {
                let names = templates(&variable.value).filter(|one| one.owner.is_none());
                next.extend(names.map(|one| (at, one.name.to_owned())));
            }
        }
    }
    let mut references: HashMap<usize, Vec<usize>> = HashMap::new();
    for at in (0..graph.raw.all.len()).filter(|at| matches!(graph.component(*at).body, RawBody::Reference(_))) {
        graph.bottom_at(at).into_iter().for_each(|bottom| references.entry(bottom).or_default().push(at));
    }
    while let Some((at, name)) = next.pop() {
        if !found.insert((at, name.clone())) {
            continue;
        }
        // What gives it its value: the parameter that a template names, and references to its component.
        let from = graph.parameter(at, &name).and_then(|one| one.node).and_then(Node::text).unwrap_or_default();
        for template in templates(from) {
            match graph.meaning(at, Field::Parameters, &template) {
                Ok(Meaning::Of(other, name)) => {
                    next.push((other, name.to_owned()));
                    next.extend(graph.bottom_at(other).map(|bottom| (bottom, name.to_owned())));
                }
                Ok(Meaning::Parent(name)) => {
                    if let Home::Dag(dag) = graph.component(at).home {
                        next.push((dag, name.to_owned()));
                    }
                }
                _ => {}
            }
        }
        let to_it = references.get(&at).into_iter().flatten();
        next.extend(to_it.filter(|at| graph.parameter(**at, &name).is_some()).map(|at| (*at, name.clone())));
    }
    let mut places = Vec::new();
    for node in found.iter().filter_map(|(at, name)| graph.parameter(*at, name)?.node) {
        node.each_leaf(&mut |leaf, text| {
            if !text.is_empty() {
                places.push(leaf.written);
            }
        });
    }
    (places, found)
}

/// The values of secret parameters, in the document and on the command line.
pub(super) fn values(graph: &Graph<'_, '_>, secrets: &HashSet<Secret>, given: &[(String, String)]) -> Known {
    let mut known = Known::default();
    let mut names: HashSet<&str> = HashSet::new();
    for (at, name) in secrets {
        names.insert(name);
        if let Some(node) = graph.parameter(*at, name).and_then(|one| one.node) {
            node.each_leaf(&mut |_, text| {
                if templates(text).next().is_none() {
                    add(&mut known, text);
                }
            });
        }
    }
    for (key, value) in given {
        if names.contains(key.rsplit('.').next().unwrap_or_default()) {
            add(&mut known, value);
        }
    }
    known
}

/// Adds a value as it is written and as it is used. Of a list in JSON, a loop uses each item alone.
fn add(known: &mut Known, written: &str) {
    known.add(written);
    if let Some(number) = literal::number(written.trim()) {
        known.add(&text::print(&number));
    }
    let mut next = text::items(Value::Text(written.to_owned())).unwrap_or_default();
    while let Some(value) = next.pop() {
        match value {
            Value::List(items) => next.extend(items),
            Value::Int(_) | Value::Float(_) | Value::Text(_) => known.add(&text::print(&value)),
        }
    }
}
