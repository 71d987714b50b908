//! The rules between components: dependencies, templates, references, the post step, and what is disabled. Each component
//! is checked where it is written, however often it is used.

use std::collections::{HashMap, HashSet};

use super::graph::{Field, Graph, Meaning, Near, deps_circle};
use super::raw::{Component, Home, RawBody, RawCache, RawMount, RawScope, RawStep};
use super::template::{Template, place, templates, whole};
use super::{files, literal, members};
use crate::diag::{Code, Diagnostic, Span};
use crate::formats::document::order::ordered;
use crate::formats::document::reader::{At, Reader, did_you_mean};
use crate::formats::document::tree::{Node, ScalarKind, Value, shortened};
use crate::pipeline;

/// Paths of components that are skipped.
pub(super) type Disabled = HashSet<String>;

pub(super) fn check(reader: &mut Reader<'_>, graph: &Graph<'_, '_>, given: &[String]) -> Disabled {
    let raw = graph.raw;
    for template in &raw.templates {
        let component = graph.component(*template);
        if let Some(dep) = component.deps.first() {
            let message = format!("`{}` in `components` has `deps`", shortened(&component.name.value));
            reader.error(Code::F0110, dep.at, message, "not allowed here");
            reader.hint("write `deps` in the step that refers to it");
        }
    }
    post(reader, graph);
    dependencies(reader, graph);
    if raw.knows_files {
        scope(reader, &raw.cache, || raw.main_fs.iter().chain(&raw.extra_fs));
    }
    let disabled = disabled(reader, graph, given);
    let skipped: HashSet<usize> =
        disabled.iter().filter_map(|path| graph.walk(path)).filter_map(|path| written_at(graph, &path)).collect();
    let mut is_skipped = vec![false; raw.all.len()];
    let mut has_no_store = false;
    for (at, component) in raw.all.iter().enumerate() {
        // A DAG comes before its components.
        is_skipped[at] = skipped.contains(&at) || matches!(component.home, Home::Dag(dag) if is_skipped[dag]);
        image(reader, component);
        if !is_skipped[at] {
            self::component(reader, graph, at, &mut has_no_store);
        }
    }
    disabled
}

/// The component at the end of a path, if the path does not lead through a reference.
fn written_at(graph: &Graph<'_, '_>, path: &[usize]) -> Option<usize> {
    let (last, before) = path.split_last()?;
    let is_written = before.iter().all(|at| matches!(graph.component(*at).body, RawBody::Dag(_)));
    is_written.then_some(*last)
}

fn post(reader: &mut Reader<'_>, graph: &Graph<'_, '_>) {
    let raw = graph.raw;
    if let [first, second, ..] = raw.post[..] {
        let (source, names) = (reader.source, [&graph.component(first).name, &graph.component(second).name]);
        reader.errors.add(|| {
            Diagnostic::error(Code::F0119, "`post_process` has more than one step")
                .label(source.label(names[1].at, "the second"))
                .label(source.label(names[0].at, "the first"))
        });
    }
    for at in &raw.post {
        let component = graph.component(*at);
        let name = &component.name;
        let mut refuse = |at: Span, what: &str| {
            let message = format!("the step `{}` of `post_process` cannot have {what}", shortened(&name.value));
            reader.error(Code::F0119, at, message, "");
        };
        if graph.children(*at).is_some() {
            refuse(name.at, "components of its own");
        }
        if let Some(dep) = component.deps.first() {
            refuse(dep.at, "`deps`");
        }
        let bottom = graph.bottom(*at).unwrap_or(component);
        if let Some((input, _)) = component.inputs.first().or(bottom.inputs.first()) {
            refuse(input.at, "input artifacts");
        }
        if let Some(condition) = bottom.condition {
            refuse(condition.at, "a `condition`");
        }
        if let Some(items) = bottom.items {
            refuse(items.at, "a `loop_argument`");
        }
        if let RawBody::Step(step) = &bottom.body
            && let Some(enable) = step.cache.enable.as_ref().filter(|enable| enable.value)
        {
            refuse(enable.at, "an enabled `cache`");
        }
        if let Some(other) = graph.find(Home::EntryPoints, &name.value) {
            let source = reader.source;
            reader.errors.add(|| {
                let message = format!("`{}` is in both `post_process` and `entry_points`", shortened(&name.value));
                Diagnostic::error(Code::F0119, message)
                    .label(source.label(name.at, "rename one of them"))
                    .label(source.label(graph.component(other).name.at, "in `entry_points`"))
            });
        }
    }
}

/// Dependencies between siblings, and cycles in them.
fn dependencies(reader: &mut Reader<'_>, graph: &Graph<'_, '_>) {
    let raw = graph.raw;
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); raw.all.len()];
    for (at, component) in raw.all.iter().enumerate() {
        if matches!(component.home, Home::Templates | Home::Post) {
            continue;
        }
        for dep in &component.deps {
            if let Some(other) = graph.find(component.home, &dep.value) {
                after[at].push(other);
                continue;
            }
            let beside =
                raw.all.iter().filter(|other| other.home == component.home).map(|other| other.name.value.as_str());
            let label = did_you_mean(reader.nearest(&dep.value, beside), "no component beside it has this name");
            let message = format!("{} depends on an unknown component `{}`", component.what(), shortened(&dep.value));
            reader.error(Code::F0110, dep.at, message, label);
        }
    }
    ordered(
        raw.all.len(),
        |at, nth| after[at].get(nth).copied(),
        |path| {
            reader.errors.add(|| deps_circle(reader.source, raw, &path.collect::<Vec<_>>()));
        },
    );
}

fn disabled(reader: &mut Reader<'_>, graph: &Graph<'_, '_>, given: &[String]) -> Disabled {
    let mut paths: HashMap<&str, Option<Span>> = HashMap::new();
    if graph.raw.entry_points.is_empty() {
        // That is an error already.
        return Disabled::new();
    }
    let written = graph.raw.disabled.iter().map(|At { value, at }| (value.as_str(), Some(*at)));
    for (path, at) in written.chain(given.iter().map(|path| (path.as_str(), None))) {
        let mut refuse = |message: String, label: String| {
            let source = reader.source;
            let error = Diagnostic::error(Code::F0114, message);
            reader.errors.add(|| match at {
                Some(at) => error.label(source.label(at, label)),
                None => error,
            });
        };
        if graph.walk(path).is_none() {
            let names = graph.raw.entry_points.iter().map(|at| graph.component(*at).name.value.as_str());
            let label = did_you_mean(crate::diag::nearest(path, names), "");
            refuse(format!("the pipeline has no component `{}`", shortened(path)), label);
            continue;
        }
        if paths.contains_key(path) && at.is_some() {
            refuse(format!("`{path}` is disabled twice"), "again here".to_owned());
            continue;
        }
        paths.entry(path).or_insert(at);
    }
    if !paths.is_empty() {
        let mut users: HashMap<(Home, &str), Vec<usize>> = HashMap::new();
        for (at, component) in graph.raw.all.iter().enumerate() {
            component.deps.iter().for_each(|dep| users.entry((component.home, &dep.value)).or_default().push(at));
        }
        for (path, at) in &paths {
            needed(reader, graph, path, *at, &paths, &users);
        }
    }
    paths.into_keys().map(str::to_owned).collect()
}

/// Reports a disabled component whose values others use.
fn needed(
    reader: &mut Reader<'_>,
    graph: &Graph<'_, '_>,
    path: &str,
    at: Option<Span>,
    disabled: &HashMap<&str, Option<Span>>,
    users: &HashMap<(Home, &str), Vec<usize>>,
) {
    let (around, name) = path.rsplit_once('.').map_or((None, path), |(around, name)| (Some(around), name));
    let Some(disabled_at) = graph.walk(path).and_then(|path| path.last().copied()) else { return };
    let is_disabled = |path: &str| {
        let mut prefixes = path.match_indices('.').map(|(at, _)| &path[..at]).chain([path]);
        prefixes.any(|prefix| disabled.contains_key(prefix))
    };
    if around.is_some_and(is_disabled) {
        return;
    }
    let home = graph.component(disabled_at).home;
    let users = users.get(&(home, name)).into_iter().flatten().map(|user| graph.component(*user));
    let users = users.filter(|other| {
        let path = around.map_or(other.name.value.clone(), |around| format!("{around}.{}", other.name.value));
        !disabled.contains_key(path.as_str())
    });
    let uses = |node: &Node| templates(node.text().unwrap_or_default()).any(|one| one.owner == Some(name));
    let mut using = users.filter_map(|user| {
        let parameters = user.parameters.iter().filter_map(|one| one.node);
        let node = parameters.chain(user.inputs.iter().map(|(_, node)| *node)).find(|node| uses(node))?;
        Some((user.what(), node))
    });
    let found = using.next().or_else(|| {
        let Home::Dag(dag) = home else { return None };
        let dag = graph.component(dag);
        let node = dag.outputs.iter().filter_map(|(_, node)| *node).find(|node| uses(node))?;
        Some((dag.what(), node))
    });
    if let Some((user, node)) = found {
        let source = reader.source;
        reader.errors.add(|| {
            let error = Diagnostic::error(Code::F0114, format!("`{path}` is disabled, but {user} uses its values"));
            let error = at.into_iter().fold(error, |error, at| error.label(source.label(at, "disabled here")));
            error.label(source.label(node.at, "used here")).hint(format!("disable {user} too"))
        });
    }
}

fn image(reader: &mut Reader<'_>, component: &Component<'_>) {
    if let RawBody::Step(step) = &component.body
        && let Some(image) =
            step.image.as_ref().filter(|image| image.value.rsplit_once('.').is_some_and(|(_, end)| end == "tar"))
    {
        reader.error(Code::F0013, image.at, "`docker_env` must be an image, not a `.tar` file", "");
    }
}

fn component(reader: &mut Reader<'_>, graph: &Graph<'_, '_>, at: usize, has_no_store: &mut bool) {
    let component = graph.component(at);
    names(reader, component);
    if let RawBody::Reference(_) = component.body {
        reference(reader, graph, at);
    }
    for parameter in &component.parameters {
        each(reader, graph, at, Field::Parameters, parameter.node);
    }
    let is_template = component.home == Home::Templates;
    for (name, node) in component.inputs.iter().filter(|_| !is_template) {
        artifact(reader, graph, at, Field::Input, name, node);
    }
    for (name, node) in &component.outputs {
        if let Some(node) = node {
            artifact(reader, graph, at, Field::Output, name, node);
        } else if graph.raw.main_fs.is_none() && graph.raw.knows_files && !std::mem::replace(has_no_store, true) {
            let message = "output artifacts need `fs_options.main_fs`, on which they are kept";
            reader.error(Code::F0118, name.at, message, "an output artifact");
            reader.hint("add `fs_options: {main_fs: {name: NAME}}`");
        }
    }
    if let Some(node) = component.condition {
        condition(reader, graph, at, node);
    }
    if let Some(items) = component.items {
        loop_argument(reader, graph, at, items);
    }
    if let RawBody::Step(step) = &component.body {
        self::step(reader, graph, at, step);
    }
}

/// Names of parameters and artifacts must differ, without regard to case: they become variables.
fn names(reader: &mut Reader<'_>, component: &Component<'_>) {
    let mut seen: HashMap<String, &At<String>> = HashMap::new();
    let parameters = component.parameters.iter().map(|one| &one.name);
    let artifacts = component.inputs.iter().map(|(name, _)| name).chain(component.outputs.iter().map(|(name, _)| name));
    for name in parameters.chain(artifacts) {
        let Some(first) = seen.insert(name.value.to_ascii_lowercase(), name) else { continue };
        let source = reader.source;
        reader.errors.add(|| {
            let what = if first.value == name.value { "twice" } else { "in two spellings" };
            Diagnostic::error(Code::F0015, format!("{} has the name `{}` {what}", component.what(), name.value))
                .label(source.label(name.at, "parameters and artifacts need different names"))
                .label(source.label(first.at, "first here"))
        });
    }
}

/// Parameters of a reference are among those of its component, and its inputs are the same.
fn reference(reader: &mut Reader<'_>, graph: &Graph<'_, '_>, at: usize) {
    let component = graph.component(at);
    let RawBody::Reference(name) = &component.body else { return };
    let Some(template_at) = graph.template(&name.value) else { return };
    let Some(bottom) = graph.bottom_at(at).filter(|bottom| graph.component(*bottom).knows_names) else { return };
    let what = format!("component `{}`", shortened(&name.value));
    for parameter in &component.parameters {
        let Some(wanted) = graph.parameter(bottom, &parameter.name.value) else {
            let known = graph.component(bottom).parameters.iter().map(|one| one.name.value.as_str());
            let label = did_you_mean(reader.nearest(&parameter.name.value, known), "");
            let message = format!("{what} has no parameter `{}`", parameter.name.value);
            reader.error(Code::F0112, parameter.name.at, message, label);
            continue;
        };
        let Some(node) = parameter.node else { continue };
        let is_literal = templates(node.text().unwrap_or_default()).next().is_none();
        if let Some(kind) = wanted.kind.filter(|_| is_literal && parameter.kind.is_none() && !node.is_broken())
            && let Some(value) = literal_of(node)
        {
            literal::typed(reader, &format!("parameter `{}`", parameter.name.value), kind, &value, node.at);
        }
    }
    let template = graph.component(template_at);
    let wanted = &graph.component(bottom).inputs;
    for (input, _) in component.inputs.iter().filter(|(input, _)| graph.input(bottom, &input.value).is_none()) {
        let label = did_you_mean(reader.nearest(&input.value, wanted.iter().map(|(name, _)| name.value.as_str())), "");
        let message = format!("{what} has no input artifact `{}`", input.value);
        reader.error(Code::F0112, input.at, message, label);
    }
    // A template that refers to another may leave its inputs to what refers to it.
    let is_chain = (component.home == Home::Templates && component.inputs.is_empty()) || !component.knows_names;
    for (input, _) in wanted.iter().filter(|(input, _)| !is_chain && graph.input(at, &input.value).is_none()) {
        let source = reader.source;
        reader.errors.add(|| {
            let message = format!("{} lacks the input artifact `{}`", component.what(), input.value);
            let error = Diagnostic::error(Code::F0112, message).label(source.label(name.at, ""));
            error.label(source.label(input.at, format!("needed by `{}`", template.name.value)))
        });
    }
}

/// The value of a leaf or list that was read without errors.
pub(super) fn literal_of(node: &Node) -> Option<crate::model::Value> {
    use crate::model;
    match &node.value {
        Value::List(items) => items.iter().map(literal_of).collect::<Option<Vec<_>>>().map(model::Value::List),
        Value::Scalar(scalar) if scalar.kind == ScalarKind::Number => literal::number(&scalar.text),
        Value::Scalar(scalar) => Some(model::Value::Text(scalar.text.clone())),
        Value::Map(_) => None,
    }
}

/// Checks the templates of a text.
fn each(reader: &mut Reader<'_>, graph: &Graph<'_, '_>, at: usize, field: Field, node: Option<&Node>) {
    let Some((node, text)) = node.and_then(|node| Some((node, node.text()?))) else { return };
    for template in templates(text) {
        let _ = meaning(reader, graph, at, field, node, &template);
    }
}

/// What a template refers to; `None` if that is an error.
fn meaning<'t>(
    reader: &mut Reader<'_>,
    graph: &Graph<'_, '_>,
    at: usize,
    field: Field,
    node: &Node,
    template: &Template<'t>,
) -> Option<Meaning<'t>> {
    let near: Near =
        if reader.errors.has_room() { |name, known| crate::diag::nearest(name, known) } else { |_, _| None };
    match graph.meaning_or_near(at, field, template, near) {
        Ok(meaning) => Some(meaning),
        Err(problem) => {
            let at = if reader.errors.has_room() { place(reader.source, node, &template.range) } else { node.at };
            reader.error(problem.code, at, problem.message, problem.label);
            if let Some(hint) = problem.hint {
                reader.hint(hint);
            }
            None
        }
    }
}

/// An artifact: its whole value is one template.
fn artifact(reader: &mut Reader<'_>, graph: &Graph<'_, '_>, at: usize, field: Field, name: &At<String>, node: &Node) {
    // What is not a text is reported already.
    let Some(text) = node.text().filter(|_| !node.is_broken()) else { return };
    if let Some(template) = whole(text) {
        let blanks = text.len() - text.trim_start().len();
        let range = template.range.start + blanks..template.range.end + blanks;
        meaning(reader, graph, at, field, node, &Template { range, ..template });
    } else {
        let message = format!("artifact `{}` of {} must be one template", name.value, graph.component(at).what());
        reader.error(Code::F0111, node.at, message, "such as \"{{step.artifact}}\"");
    }
}

/// The form of an expression. What templates stand for is not known yet: a number or a word must do.
fn condition(reader: &mut Reader<'_>, graph: &Graph<'_, '_>, at: usize, node: &Node) {
    each(reader, graph, at, Field::Condition, Some(node));
    let text = node.text().unwrap_or_default();
    if node.is_broken() {
        return;
    }
    let with = |value: &str| {
        let mut filled = String::with_capacity(text.len());
        let mut end = 0;
        for template in templates(text) {
            filled.extend([&text[end..template.range.start], value]);
            end = template.range.end;
        }
        pipeline::condition::check(&(filled + &text[end..]))
    };
    if let (Err(error), Err(_)) = (with("1"), with("x")) {
        let message = format!("`condition` of {} is not an expression", graph.component(at).what());
        reader.error(Code::F0113, node.at, message, error.message);
    }
}

/// What a loop runs over: a list, a text with a JSON list, or one template.
fn loop_argument(reader: &mut Reader<'_>, graph: &Graph<'_, '_>, at: usize, node: &Node) {
    let what = format!("`loop_argument` of {}", graph.component(at).what());
    match &node.value {
        Value::List(items) => drop(literal::list(reader, "`loop_argument`", items)),
        Value::Scalar(scalar) if scalar.kind == ScalarKind::Text => {
            if whole(&scalar.text).is_some() {
                each(reader, graph, at, Field::Loop, Some(node));
            } else if let Some(template) = templates(&scalar.text).next() {
                let at = place(reader.source, node, &template.range);
                reader.error(Code::F0113, at, format!("{what} must be one template and nothing else"), "");
            } else if literal::json_list(&scalar.text).is_none() {
                let label = format!("this is {}", node.found());
                reader.error(Code::F0113, node.at, format!("{what} must be a list, a JSON list or a template"), label);
            }
        }
        Value::Scalar(scalar) if scalar.kind == ScalarKind::Broken => {}
        Value::Scalar(_) | Value::Map(_) => reader.wrong_type(&what, node, "a list, a JSON list or a template"),
    }
}

fn step(reader: &mut Reader<'_>, graph: &Graph<'_, '_>, at: usize, step: &RawStep<'_>) {
    for variable in &step.env {
        each(reader, graph, at, Field::Env, Some(variable.node));
    }
    each(reader, graph, at, Field::Command, step.command);
    for member in &step.members {
        each(reader, graph, at, Field::Command, member.command);
    }
    members::check(reader, graph.component(at), step);
    let raw = graph.raw;
    let all = || raw.main_fs.iter().chain(&step.extra_fs).chain(&raw.extra_fs);
    if !step.extra_fs.is_empty() {
        step.extra_fs.iter().for_each(|one| files::mount(reader, one));
        files::clash(reader, all());
    }
    if step.knows_files && raw.knows_files {
        scope(reader, &step.cache, all);
    }
}

/// Every file system of a scope is one that steps have.
pub(super) fn scope<'m, M: Iterator<Item = &'m RawMount>>(
    reader: &mut Reader<'_>,
    cache: &RawCache<'_>,
    mounts: impl Fn() -> M,
) {
    for RawScope { name, paths } in &cache.scope {
        if !mounts().any(|mount| mount.name.value == name.value) {
            let near = reader.nearest(&name.value, mounts().map(|mount| mount.name.value.as_str()));
            let message = format!("file system `{}` of `fs_scope` is not mounted", shortened(&name.value));
            reader.error(Code::F0118, name.at, message, did_you_mean(near, "neither `main_fs` nor in `extra_fs`"));
        }
        for (_, node) in paths.iter().filter(|(path, _)| files::leads_out(path)) {
            reader.error(Code::F0118, node.at, "`path` must not contain `..`", "leads out of the file system");
        }
    }
}
