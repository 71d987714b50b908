//! Components by name, what references stand for, and what a template refers to.

use std::collections::{HashMap, HashSet};

use super::raw::{Component, Home, RawBody, RawParameter, RawPipeline};
use super::template::{PARENT, Template};
use crate::diag::{Code, Diagnostic, Source};
use crate::formats::document::expansion::{MAX_MEMORY, too_far};
use crate::formats::document::order::ordered;
use crate::formats::document::reader::{Reader, did_you_mean};
use crate::formats::document::tree::{Node, shortened};
use crate::model::SystemParameter;

/// DAGs in DAGs, references included.
const MAX_DEPTH: u32 = 64;
/// Components of a pipeline, copies by references included.
const MAX_COMPONENTS: u64 = 200_000;
/// Memory of a component in all that is made of it, without its texts.
const COST: u64 = 2048;
/// Names that a message about a cycle shows.
const MAX_SHOWN: usize = 10;

pub(super) struct Graph<'r, 'n> {
    pub(super) raw: &'r RawPipeline<'n>,
    names: HashMap<(Home, &'r str), usize>,
    /// What a name is in a component. Lists of thousands are searched as fast as short ones.
    own: HashMap<(usize, &'r str), Own>,
    deps: HashSet<(usize, &'r str)>,
    /// The component at the end of the references of each; `None` where there is none.
    bottoms: Vec<Option<usize>>,
}

/// What a component calls by a name, and its position among those.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Own {
    Parameter(usize),
    Input(usize),
    Output,
}

/// Where a template is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Parameters,
    Env,
    Command,
    Condition,
    Loop,
    Input,
    /// An output of a DAG.
    Output,
}

impl Field {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Parameters => "parameters",
            Self::Env => "env",
            Self::Command => "command",
            Self::Condition => "condition",
            Self::Loop => "loop_argument",
            Self::Input => "artifacts.input",
            Self::Output => "artifacts.output",
        }
    }

    /// What its templates may refer to, in words.
    fn may_use(self) -> &'static str {
        match self {
            Self::Parameters => "parameters of components in `deps`, of the DAG around it, and system parameters",
            Self::Env => "own parameters and system parameters",
            Self::Command => "own parameters, own artifacts and system parameters",
            Self::Condition => "own parameters, own input artifacts and system parameters",
            Self::Loop => "an own parameter or an own input artifact",
            Self::Input => "an output of a component in `deps`, or an input of the DAG around it",
            Self::Output => "an output of a component of the DAG",
        }
    }
}

/// Searches the nearest name.
pub(super) type Near = for<'a> fn(&str, &mut dyn Iterator<Item = &'a str>) -> Option<&'a str>;

/// What a template refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning<'t> {
    System(SystemParameter),
    Parameter(&'t str),
    Input(&'t str),
    Output(&'t str),
    /// A parameter or an output of another component.
    Of(usize, &'t str),
    Parent(&'t str),
    ParentItem,
}

/// Why a template refers to nothing.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) code: Code,
    pub(super) message: String,
    pub(super) label: String,
    pub(super) hint: Option<String>,
}

impl Problem {
    fn new(code: Code, message: impl Into<String>, label: impl Into<String>) -> Self {
        Self { code, message: message.into(), label: label.into(), hint: None }
    }

    fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl<'r, 'n> Graph<'r, 'n> {
    /// Follows references. Unknown ones and cycles are reported.
    pub(super) fn new(reader: &mut Reader<'_>, raw: &'r RawPipeline<'n>) -> Self {
        let names = raw.all.iter().enumerate().map(|(at, one)| ((one.home, one.name.value.as_str()), at)).collect();
        let mut graph =
            Self { raw, names, own: HashMap::new(), deps: HashSet::new(), bottoms: vec![None; raw.all.len()] };
        for (at, component) in raw.all.iter().enumerate() {
            let parameters = component.parameters.iter().map(|one| &one.name).enumerate();
            let parameters = parameters.map(|(nth, name)| (name, Own::Parameter(nth)));
            let inputs = component.inputs.iter().enumerate().map(|(nth, (name, _))| (name, Own::Input(nth)));
            let outputs = component.outputs.iter().map(|(name, _)| (name, Own::Output));
            let all = parameters.chain(inputs).chain(outputs);
            graph.own.extend(all.map(|(name, own)| ((at, name.value.as_str()), own)));
            graph.deps.extend(component.deps.iter().map(|dep| (at, dep.value.as_str())));
        }
        for component in &raw.all {
            if let RawBody::Reference(name) = &component.body
                && graph.template(&name.value).is_none()
                && raw.knows_templates
            {
                let names = raw.templates.iter().map(|at| raw.all[*at].name.value.as_str());
                let label = did_you_mean(reader.nearest(&name.value, names), "not in `components`");
                reader.error(Code::F0112, name.at, format!("unknown component `{}`", shortened(&name.value)), label);
            }
        }
        let next = |at: usize, nth: usize| match &raw.all[at].body {
            RawBody::Dag(children) => children.get(nth).copied(),
            RawBody::Reference(name) if nth == 0 => graph.template(&name.value),
            RawBody::Reference(_) | RawBody::Step(_) | RawBody::Broken => None,
        };
        let mut has_cycles = false;
        let order = ordered(raw.all.len(), next, |path| {
            has_cycles = true;
            reader.errors.add(|| {
                let on_path: Vec<usize> = path.collect();
                circle(reader.source, raw, &on_path)
            });
        });
        for at in &order {
            graph.bottoms[*at] = match &raw.all[*at].body {
                RawBody::Reference(name) => graph.template(&name.value).and_then(|template| graph.bottoms[template]),
                RawBody::Dag(_) | RawBody::Step(_) => Some(*at),
                RawBody::Broken => None,
            };
        }
        if !has_cycles {
            graph.limit(reader, &order);
        }
        graph
    }

    /// Refuses references that multiply a pipeline.
    fn limit(&self, reader: &mut Reader<'_>, order: &[usize]) {
        // Components, bytes, and depth of each with all that is in it.
        let mut sizes = vec![(1_u64, 0_u64, 1_u32); self.raw.all.len()];
        for at in order {
            let component = self.component(*at);
            let below: &[usize] = match &component.body {
                RawBody::Dag(children) => children,
                RawBody::Reference(_) => self.bottoms[*at].as_slice(),
                RawBody::Step(_) | RawBody::Broken => &[],
            };
            // A reference is what it stands for; a DAG is one more, around its components.
            let is_reference = matches!(component.body, RawBody::Reference(_));
            let (mut count, mut bytes, mut depth) =
                if is_reference { (0_u64, 0, 0) } else { (1, bytes(component), 1_u32) };
            for below in below {
                let below = sizes[*below];
                (count, bytes) = (count.saturating_add(below.0), bytes.saturating_add(below.1));
                depth = depth.max(below.2.saturating_add(u32::from(!is_reference)));
            }
            sizes[*at] = (count, bytes, depth);
        }
        let (mut count, mut bytes, mut depth) = (0_u64, 0_u64, 0);
        let mut largest = None;
        for at in self.raw.entry_points.iter().chain(&self.raw.post) {
            let size = sizes[*at];
            (count, bytes, depth) = (count.saturating_add(size.0), bytes.saturating_add(size.1), depth.max(size.2));
            largest = largest.max(Some((size.0, std::cmp::Reverse(*at))));
        }
        let Some((_, std::cmp::Reverse(at))) = largest else { return };
        let written = self.raw.all.len() as u64;
        let budget = MAX_MEMORY as u64 + 100 * reader.source.text.len() as u64;
        let added = (count.saturating_sub(written)).saturating_mul(COST).saturating_add(bytes);
        let at = reader.source.label(self.component(at).name.at, "most of them here");
        if depth > MAX_DEPTH {
            let error = Diagnostic::error(Code::F0112, "components are nested too deep");
            let error = error.row("depth", depth.to_string()).row("limit", MAX_DEPTH.to_string());
            reader.errors.add(|| error.label(reader.source.label(self.raw.all[0].name.at, "")));
        } else if count > MAX_COMPONENTS {
            let error = Diagnostic::error(Code::F0112, "the pipeline has too many components");
            reader
                .errors
                .add(|| error.label(at).row("components", count.to_string()).row("limit", MAX_COMPONENTS.to_string()));
        } else if added > budget {
            let error = Diagnostic { message: "references copy components too often".to_owned(), ..too_far() };
            reader
                .errors
                .add(|| Diagnostic { hints: Vec::new(), ..error }.label(at).row("components", count.to_string()));
        }
    }

    pub(super) fn component(&self, at: usize) -> &'r Component<'n> {
        &self.raw.all[at]
    }

    pub(super) fn find(&self, home: Home, name: &str) -> Option<usize> {
        self.names.get(&(home, name)).copied()
    }

    pub(super) fn template(&self, name: &str) -> Option<usize> {
        self.find(Home::Templates, name)
    }

    /// What a component stands for: itself, or what its references lead to.
    pub(super) fn bottom(&self, at: usize) -> Option<&'r Component<'n>> {
        self.bottom_at(at).map(|at| self.component(at))
    }

    pub(super) fn bottom_at(&self, at: usize) -> Option<usize> {
        self.bottoms[at]
    }

    /// The components of a DAG, or of what a reference leads to.
    pub(super) fn children(&self, at: usize) -> Option<(usize, &'r [usize])> {
        let bottom = self.bottom_at(at)?;
        match &self.component(bottom).body {
            RawBody::Dag(children) => Some((bottom, children)),
            RawBody::Step(_) | RawBody::Reference(_) | RawBody::Broken => None,
        }
    }

    /// The names from the top to a component: `dag.child`.
    pub(super) fn path(&self, at: usize) -> String {
        let mut names = vec![self.component(at).name.value.as_str()];
        let mut home = self.component(at).home;
        while let Home::Dag(dag) = home {
            names.push(&self.component(dag).name.value);
            home = self.component(dag).home;
        }
        names.reverse();
        names.join(".")
    }

    /// The components on a path from the top, through references too.
    pub(super) fn walk(&self, path: &str) -> Option<Vec<usize>> {
        let mut names = path.split('.');
        let first = names.next()?;
        let first = self.find(Home::EntryPoints, first).or_else(|| self.find(Home::Post, first))?;
        let mut found = vec![first];
        for name in names {
            let (dag, _) = self.children(*found.last()?)?;
            found.push(self.find(Home::Dag(dag), name)?);
        }
        Some(found)
    }

    /// What a template in a field of a component refers to. The search for near names takes time: for errors that are
    /// shown, [`Self::meaning_or_near`] does it.
    pub(super) fn meaning<'t>(&self, at: usize, field: Field, template: &Template<'t>) -> Result<Meaning<'t>, Problem> {
        self.meaning_or_near(at, field, template, |_, _| None)
    }

    pub(super) fn meaning_or_near<'t>(
        &self,
        at: usize,
        field: Field,
        template: &Template<'t>,
        near: Near,
    ) -> Result<Meaning<'t>, Problem> {
        let component = self.component(at);
        match template.owner {
            None => self.own(at, field, template.name, near),
            Some(PARENT) => self.of_parent(component, field, template.name, near),
            Some(owner) => self.of_other(at, field, owner, template.name, near),
        }
    }

    /// The parameter of this name that a component itself has.
    pub(super) fn parameter(&self, at: usize, name: &str) -> Option<&'r RawParameter<'n>> {
        match self.own.get(&(at, name))? {
            Own::Parameter(nth) => self.component(at).parameters.get(*nth),
            Own::Input(_) | Own::Output => None,
        }
    }

    /// The template of an input artifact that a component itself has.
    pub(super) fn input(&self, at: usize, name: &str) -> Option<&'n Node> {
        match self.own.get(&(at, name))? {
            Own::Input(nth) => self.component(at).inputs.get(*nth).map(|(_, node)| *node),
            Own::Parameter(_) | Own::Output => None,
        }
    }

    fn has_output(&self, at: usize, name: &str) -> bool {
        self.own.get(&(at, name)) == Some(&Own::Output)
    }

    fn own<'t>(&self, at: usize, field: Field, name: &'t str, near: Near) -> Result<Meaning<'t>, Problem> {
        let component = self.component(at);
        let not_here = |what: &str| {
            let message = format!("`{}` cannot use {what} `{name}`", field.name());
            Err(Problem::new(Code::F0111, message, format!("only {}", field.may_use())))
        };
        if let Some(system) = SystemParameter::ALL.into_iter().find(|system| system.name() == name) {
            return match field {
                Field::Parameters | Field::Env | Field::Command | Field::Condition => Ok(Meaning::System(system)),
                Field::Loop | Field::Input | Field::Output => not_here("the system parameter"),
            };
        }
        if self.parameter(at, name).is_some() {
            return match field {
                Field::Env | Field::Command | Field::Condition | Field::Loop => Ok(Meaning::Parameter(name)),
                Field::Parameters => not_here("another parameter of the same component,"),
                Field::Input | Field::Output => not_here("the parameter"),
            };
        }
        if self.input(at, name).is_some() {
            return match field {
                Field::Command | Field::Condition | Field::Loop => Ok(Meaning::Input(name)),
                Field::Parameters | Field::Env | Field::Input | Field::Output => not_here("the input artifact"),
            };
        }
        if self.has_output(at, name) {
            return match field {
                Field::Command => Ok(Meaning::Output(name)),
                _ => not_here("the output artifact"),
            };
        }
        if !component.knows_names {
            return Ok(Meaning::Parameter(name));
        }
        if matches!(field, Field::Input | Field::Output) {
            let message = format!("`{{{{{name}}}}}` does not name an artifact of another component");
            return Err(Problem::new(Code::F0111, message, format!("write {}", field.may_use())));
        }
        let known = component.parameters.iter().map(|one| one.name.value.as_str());
        let known = known.chain(component.inputs.iter().map(|(name, _)| name.value.as_str()));
        let known = known.chain(component.outputs.iter().map(|(name, _)| name.value.as_str()));
        let known = known.chain(SystemParameter::ALL.iter().map(|system| system.name()));
        let old = matches!(name, "PF_FS_ID" | "PF_FS_NAME" | "PF_RUN_TIME");
        let otherwise = if old { "no longer in PaddleFlow" } else { "not among its parameters and artifacts" };
        let label = did_you_mean(near(name, &mut known.into_iter()).filter(|_| !old), otherwise);
        Err(Problem::new(Code::F0030, format!("{} has no parameter `{name}`", component.what()), label))
    }

    fn of_parent<'t>(
        &self,
        component: &Component<'n>,
        field: Field,
        name: &'t str,
        near: Near,
    ) -> Result<Meaning<'t>, Problem> {
        if !matches!(field, Field::Parameters | Field::Input) {
            return Err(Self::not_of_others(component, field, PARENT, name));
        }
        let Home::Dag(parent) = component.home else {
            let message = format!("`{PARENT}` in {}, which is not in a DAG", component.what());
            return Err(Problem::new(Code::F0111, message, "has no meaning here"));
        };
        let dag = self.component(parent);
        if !dag.knows_names && name != SystemParameter::LoopArgument.name() {
            return Ok(Meaning::Parent(name));
        }
        match field {
            Field::Parameters if name == SystemParameter::LoopArgument.name() => {
                let message = || format!("{} has no `loop_argument`, so there is no item", dag.what());
                let item = dag.items.map(|_| Meaning::ParentItem);
                item.ok_or_else(|| Problem::new(Code::F0111, message(), ""))
            }
            Field::Parameters => match self.parameter(parent, name) {
                Some(_) => Ok(Meaning::Parent(name)),
                None => Err(unknown(
                    &dag.what(),
                    "parameter",
                    name,
                    dag.parameters.iter().map(|one| one.name.value.as_str()),
                    near,
                )),
            },
            _ => {
                let inputs = || dag.inputs.iter().map(|(input, _)| input.value.as_str());
                if self.input(parent, name).is_some() {
                    Ok(Meaning::Parent(name))
                } else {
                    Err(unknown(&dag.what(), "input artifact", name, inputs(), near))
                }
            }
        }
    }

    fn of_other<'t>(
        &self,
        at: usize,
        field: Field,
        owner: &str,
        name: &'t str,
        near: Near,
    ) -> Result<Meaning<'t>, Problem> {
        let component = self.component(at);
        let other = match field {
            Field::Output => {
                let Some(child) = self.find(Home::Dag(at), owner) else {
                    let RawBody::Dag(children) = &component.body else { return Ok(Meaning::Output(name)) };
                    let names = children.iter().map(|child| self.component(*child).name.value.as_str());
                    return Err(unknown(&component.what(), "component", owner, names, near));
                };
                child
            }
            Field::Parameters | Field::Input => self.sibling(at, owner)?,
            Field::Env | Field::Command | Field::Condition | Field::Loop => {
                return Err(Self::not_of_others(component, field, owner, name));
            }
        };
        // A reference that leads nowhere is reported where it is.
        let Some(bottom_at) = self.bottom_at(other) else { return Ok(Meaning::Of(other, name)) };
        let bottom = self.component(bottom_at);
        let what = self.component(other).what();
        if !bottom.knows_names {
            return Ok(Meaning::Of(other, name));
        }
        if field == Field::Parameters {
            if name == SystemParameter::LoopArgument.name() {
                let message = format!("`{name}` of {what} cannot be used by other components");
                return Err(Problem::new(Code::F0111, message, "each item has its own"));
            }
            let names = || bottom.parameters.iter().map(|one| one.name.value.as_str());
            return if self.parameter(bottom_at, name).is_some() {
                Ok(Meaning::Of(other, name))
            } else {
                Err(unknown(&what, "parameter", name, names(), near))
            };
        }
        let names = || bottom.outputs.iter().map(|(output, _)| output.value.as_str());
        if !self.has_output(bottom_at, name) {
            return Err(unknown(&what, "output artifact", name, names(), near));
        }
        if bottom.condition.is_some() {
            let message = format!("artifacts of {what} cannot be used, because it has a `condition`");
            return Err(Problem::new(Code::F0111, message, "missing if the condition is false"));
        }
        Ok(Meaning::Of(other, name))
    }

    /// The component of this name beside another, which must depend on it.
    fn sibling(&self, at: usize, owner: &str) -> Result<usize, Problem> {
        let component = self.component(at);
        match component.home {
            Home::Post => {
                let message = "a step of `post_process` cannot use values of other components";
                return Err(Problem::new(Code::F0119, message, ""));
            }
            Home::Templates => {
                let message = "a component of `components` cannot use values of other components";
                let problem = Problem::new(Code::F0111, message, "");
                return Err(problem.hint("give it a parameter, and set that where the component is used"));
            }
            Home::EntryPoints | Home::Dag(_) => {}
        }
        let found = self.find(component.home, owner);
        match found {
            Some(other) if self.deps.contains(&(at, owner)) || !component.knows_deps => Ok(other),
            _ => {
                let message = format!("`{owner}` is not in `deps` of {}", component.what());
                let label = if found.is_some() { "used here" } else { "no component beside it has this name" };
                let problem = Problem::new(Code::F0111, message, label);
                Err(if found.is_some() {
                    problem.hint(format!("add it: `deps: {}`", deps(component, owner)))
                } else {
                    problem
                })
            }
        }
    }

    fn not_of_others(component: &Component<'n>, field: Field, owner: &str, name: &str) -> Problem {
        let message = format!("`{}` of {} cannot use values of `{owner}`", field.name(), component.what());
        let problem = Problem::new(Code::F0111, message, format!("only {}", field.may_use()));
        problem.hint(format!("add a parameter `{name}: \"{{{{{owner}.{name}}}}}\"`, and use \"{{{{{name}}}}}\""))
    }
}

/// The dependencies of a component, with one more.
fn deps(component: &Component<'_>, more: &str) -> String {
    let mut names: Vec<&str> = component.deps.iter().map(|dep| dep.value.as_str()).collect();
    names.push(more);
    names.join(",")
}

fn unknown<'a>(what: &str, kind: &str, name: &str, mut known: impl Iterator<Item = &'a str>, near: Near) -> Problem {
    let label = did_you_mean(near(name, &mut known), "");
    Problem::new(Code::F0030, format!("{what} has no {kind} `{name}`"), label)
}

/// Bytes of the texts that a copy of a component has.
fn bytes(component: &Component<'_>) -> u64 {
    let of = |node: Option<&Node>| node.map_or(0, |node| node.written.end - node.written.start);
    let parameters = component.parameters.iter().map(|one| of(one.node)).sum::<usize>();
    let own = match &component.body {
        RawBody::Step(step) => {
            let env = |env: &[super::raw::Variable<'_>]| {
                env.iter().map(|one| one.value.len() + one.name.value.len()).sum::<usize>()
            };
            let members = step
                .members
                .iter()
                .map(|member| of(member.command.or(step.command)) + env(&member.env) + env(&step.env));
            of(step.command) + env(&step.env) + members.sum::<usize>()
        }
        RawBody::Dag(_) | RawBody::Reference(_) | RawBody::Broken => 0,
    };
    (parameters + own + of(component.condition) + of(component.items)) as u64
}

/// The error about components that refer to each other.
fn circle(source: &Source, raw: &RawPipeline<'_>, path: &[usize]) -> Diagnostic {
    let references: Vec<_> = path
        .iter()
        .filter_map(|at| match &raw.all[*at].body {
            RawBody::Reference(name) => Some(name),
            RawBody::Dag(_) | RawBody::Step(_) | RawBody::Broken => None,
        })
        .collect();
    let names: Vec<String> =
        references.iter().take(MAX_SHOWN).map(|name| format!("`{}`", shortened(&name.value))).collect();
    let error = Diagnostic::error(Code::F0112, format!("components contain themselves: {}", names.join(", ")));
    references.iter().take(MAX_SHOWN).fold(error, |error, name| error.label(source.label(name.at, "")))
}

/// The error about components that wait for each other.
pub(super) fn deps_circle(source: &Source, raw: &RawPipeline<'_>, path: &[usize]) -> Diagnostic {
    let names: Vec<String> =
        path.iter().take(MAX_SHOWN).map(|at| format!("`{}`", shortened(&raw.all[*at].name.value))).collect();
    let more = if path.len() > MAX_SHOWN { format!(" and {} more", path.len() - MAX_SHOWN) } else { String::new() };
    let error = Diagnostic::error(Code::F0110, format!("components depend on each other: {}{more}", names.join(", ")));
    (0..names.len()).fold(error, |error, step| {
        let (one, other) = (&raw.all[path[step]], &raw.all[path[(step + 1) % path.len()]].name.value);
        let at = one.deps.iter().find(|dep| dep.value == *other).map_or(one.name.at, |dep| dep.at);
        error.label(source.label(at, format!("{} depends on `{}`", names[step], shortened(other))))
    })
}
