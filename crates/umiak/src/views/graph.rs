//! The DAG of a pipeline, drawn: `plan --graph`, `show --graph`.

use std::fmt::Write as _;

use clap::ValueEnum;
use umiak_core::model::{Body, Items, Job, Node, NodeId, Piece, Pipeline, Reference, Text};

use super::facts::{list, plural};
use super::pipeline::PipelineRun;
use super::table::{Giving, TableCell, table};
use crate::screen::Style;
use crate::screen::style::Mark;

/// How to draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Graph {
    Text,
    Mermaid,
    Dot,
}

/// A pipeline to be drawn, with what has happened if it was run.
pub(crate) struct Drawing<'a> {
    pub(crate) pipeline: &'a Pipeline,
    pub(crate) run: Option<&'a PipelineRun<'a>>,
}

impl Drawing<'_> {
    pub(crate) fn draw(&self, graph: Graph, style: &Style) -> String {
        match graph {
            Graph::Text => self.text(style),
            Graph::Mermaid => self.mermaid(),
            Graph::Dot => self.dot(),
        }
    }

    fn children(&self, id: NodeId) -> Option<&[NodeId]> {
        match &self.pipeline.node(id).body {
            Body::Dag { children } => Some(children),
            Body::Step(_) => None,
        }
    }

    /// The state of a node. In a loop there is one for each item, so none of the node.
    fn mark(&self, id: NodeId) -> Option<Mark> {
        let run = self.run?;
        let mut at = self.pipeline.node(id).parent;
        while at != Pipeline::ROOT {
            if self.pipeline.node(at).items.is_some() {
                return None;
            }
            at = self.pipeline.node(at).parent;
        }
        Some(run.mark(&self.pipeline.path(id)))
    }

    /// One line for each node, by stages: a node is in the stage after the last one that it waits for.
    fn text(&self, style: &Style) -> String {
        let mut rows = Vec::new();
        self.stage_rows(style, Pipeline::ROOT, "", 0, &mut rows);
        if let Some(post) = self.pipeline.post {
            rows.push(self.row(style, post, "end".to_owned(), 0));
        }
        table(style, &["stage", "node", "after", "what"], &rows, Giving { cut: &[3, 2], drop: &[], last: &[1] })
    }

    fn stage_rows(&self, style: &Style, dag: NodeId, prefix: &str, depth: usize, rows: &mut Vec<Vec<TableCell>>) {
        let mut last = String::new();
        for (stage, id) in stages(self.pipeline, self.children(dag).unwrap_or_default()) {
            let stage = format!("{prefix}{stage}");
            let shown = if stage == last { String::new() } else { stage.clone() };
            last.clone_from(&stage);
            rows.push(self.row(style, id, shown, depth));
            if self.children(id).is_some() {
                self.stage_rows(style, id, &format!("{stage}."), depth + 1, rows);
            }
        }
    }

    fn row(&self, style: &Style, id: NodeId, stage: String, depth: usize) -> Vec<TableCell> {
        let node = self.pipeline.node(id);
        let mark = self.mark(id);
        let sign = mark.map(|mark| format!("{} ", style.mark(mark))).unwrap_or_default();
        let name = format!("{}{sign}{}", "  ".repeat(depth), node.name);
        let after: Vec<String> = node.deps.iter().map(|id| self.pipeline.node(*id).name.clone()).collect();
        let mut what = self.words(node);
        match &node.body {
            Body::Dag { children } => what.insert(0, format!("DAG of {}", children.len())),
            Body::Step(step) => what.extend(members(&step.job)),
        }
        if self.pipeline.post == Some(id) {
            what.push("runs at the end, whatever happens".to_owned());
        }
        let mut name: TableCell = name.into();
        name.mark = mark;
        vec![stage.into(), name, list(&after).into(), what.join("; ").into()]
    }

    /// What makes a node special.
    fn words(&self, node: &Node) -> Vec<String> {
        let mut words = Vec::new();
        match &node.items {
            Some(Items::List(items)) => words.push(format!("for each of {} item{}", items.len(), plural(items.len()))),
            Some(Items::Of(reference)) => words.push(format!("for each of {}", template_of(self.pipeline, reference))),
            None => {}
        }
        words.extend(node.condition.as_ref().map(|condition| format!("if {}", template(self.pipeline, condition))));
        if node.disabled {
            words.push("disabled".to_owned());
        }
        words
    }

    fn label(&self, id: NodeId) -> Vec<String> {
        let node = self.pipeline.node(id);
        let mut lines = vec![node.name.clone()];
        lines.extend(self.words(node));
        if let Body::Step(step) = &node.body {
            lines.extend(members(&step.job));
        }
        if self.pipeline.post == Some(id) {
            lines.push("at the end".to_owned());
        }
        lines
    }

    /// The nodes of the root that nothing waits for: the post step comes after them.
    fn last(&self) -> Vec<NodeId> {
        let children = self.children(Pipeline::ROOT).unwrap_or_default();
        let mut waited: Vec<NodeId> = children.iter().flat_map(|id| &self.pipeline.node(*id).deps).copied().collect();
        waited.sort_unstable();
        children.iter().copied().filter(|id| waited.binary_search(id).is_err()).collect()
    }

    fn mermaid(&self) -> String {
        let mut text = "flowchart TD\n".to_owned();
        let mut edges = String::new();
        for id in self.children(Pipeline::ROOT).unwrap_or_default().iter().chain(&self.pipeline.post) {
            self.mermaid_node(*id, 1, &mut text, &mut edges);
        }
        if let Some(post) = self.pipeline.post {
            for last in self.last() {
                let _ = writeln!(edges, "  n{} -.-> n{}", last.0, post.0);
            }
        }
        text += &edges;
        let states: Vec<(NodeId, Mark)> =
            self.pipeline.iter().skip(1).filter_map(|(id, _)| Some((id, self.mark(id)?))).collect();
        for mark in Mark::ALL {
            let of: Vec<String> =
                states.iter().filter(|(_, state)| *state == mark).map(|(id, _)| format!("n{}", id.0)).collect();
            if !of.is_empty() {
                let (name, colour) = look(mark);
                let _ = writeln!(text, "  classDef {name} fill:{colour},color:#000");
                let _ = writeln!(text, "  class {} {name}", of.join(","));
            }
        }
        text
    }

    fn mermaid_node(&self, id: NodeId, depth: usize, text: &mut String, edges: &mut String) {
        let label = self.label(id).iter().map(|line| of_html(line)).collect::<Vec<_>>().join("<br/>");
        let (indent, node) = ("  ".repeat(depth), self.pipeline.node(id));
        if let Some(children) = self.children(id).filter(|children| !children.is_empty()) {
            let _ = writeln!(text, "{indent}subgraph n{}[\"{label}\"]", id.0);
            for child in children {
                self.mermaid_node(*child, depth + 1, text, edges);
            }
            let _ = writeln!(text, "{indent}end");
        } else if node.items.is_some() {
            let _ = writeln!(text, "{indent}n{}[[\"{label}\"]]", id.0);
        } else {
            let _ = writeln!(text, "{indent}n{}[\"{label}\"]", id.0);
        }
        for dep in &node.deps {
            let _ = writeln!(edges, "  n{} --> n{}", dep.0, id.0);
        }
    }

    fn dot(&self) -> String {
        let mut text = format!(
            "digraph {} {{\n  compound=true; node [shape=box, style=\"rounded,filled\", fillcolor=white];\n",
            quoted(&[self.pipeline.name.to_string()])
        );
        let mut edges = String::new();
        for id in self.children(Pipeline::ROOT).unwrap_or_default().iter().chain(&self.pipeline.post) {
            self.dot_node(*id, 1, &mut text, &mut edges);
        }
        if let Some(post) = self.pipeline.post {
            for last in self.last() {
                edges += &self.edge(last, post, "style=dashed");
            }
        }
        format!("{text}{edges}}}\n")
    }

    fn dot_node(&self, id: NodeId, depth: usize, text: &mut String, edges: &mut String) {
        let (indent, node) = ("  ".repeat(depth), self.pipeline.node(id));
        let label = quoted(&self.label(id));
        let fill = self.mark(id).map(|mark| look(mark).1);
        if let Some(children) = self.children(id) {
            let fill = fill.map(|colour| format!(" bgcolor=\"{colour}\";")).unwrap_or_default();
            let _ = writeln!(text, "{indent}subgraph cluster_n{} {{ label={label};{fill}", id.0);
            // Edges of the cluster end at this.
            let _ = writeln!(text, "{indent}  n{} [shape=point, style=invis];", id.0);
            for child in children {
                self.dot_node(*child, depth + 1, text, edges);
            }
            let _ = writeln!(text, "{indent}}}");
        } else {
            let fill = fill.map(|colour| format!(", fillcolor=\"{colour}\"")).unwrap_or_default();
            let several = if node.items.is_some() { ", peripheries=2" } else { "" };
            let _ = writeln!(text, "{indent}n{} [label={label}{several}{fill}];", id.0);
        }
        for dep in &node.deps {
            *edges += &self.edge(*dep, id, "");
        }
    }

    fn edge(&self, from: NodeId, to: NodeId, look: &str) -> String {
        let mut options = Vec::new();
        if self.children(from).is_some() {
            options.push(format!("ltail=cluster_n{}", from.0));
        }
        if self.children(to).is_some() {
            options.push(format!("lhead=cluster_n{}", to.0));
        }
        if !look.is_empty() {
            options.push(look.to_owned());
        }
        let options = if options.is_empty() { String::new() } else { format!(" [{}]", options.join(", ")) };
        format!("  n{} -> n{}{options};\n", from.0, to.0)
    }
}

/// Siblings by stage, from 1; in a stage, in their order.
fn stages(pipeline: &Pipeline, siblings: &[NodeId]) -> Vec<(usize, NodeId)> {
    let place: std::collections::HashMap<NodeId, usize> = siblings.iter().copied().zip(0..).collect();
    let deps = |id: NodeId| pipeline.node(id).deps.iter().filter_map(|dep| place.get(dep).copied());
    let mut left: Vec<usize> = siblings.iter().map(|id| deps(*id).count()).collect();
    let mut next: Vec<Vec<usize>> = vec![Vec::new(); siblings.len()];
    for (position, id) in siblings.iter().enumerate() {
        deps(*id).for_each(|dep| next[dep].push(position));
    }
    let mut stage = vec![1; siblings.len()];
    let mut ready: Vec<usize> = (0..siblings.len()).filter(|position| left[*position] == 0).collect();
    while let Some(position) = ready.pop() {
        for after in std::mem::take(&mut next[position]) {
            stage[after] = stage[after].max(stage[position] + 1);
            left[after] -= 1;
            if left[after] == 0 {
                ready.push(after);
            }
        }
    }
    let mut staged: Vec<(usize, NodeId)> = stage.into_iter().zip(siblings.iter().copied()).collect();
    staged.sort_by_key(|(stage, _)| *stage);
    staged
}

/// `pserver 1, worker 2`, if there are several replicas.
fn members(job: &Job) -> Option<String> {
    let is_several = job.roles.iter().map(|role| role.replicas).sum::<u32>() > 1;
    let roles = job.roles.iter().map(|role| format!("{} {}", role.name, role.replicas));
    is_several.then(|| roles.collect::<Vec<_>>().join(", "))
}

/// A text with its references as in a document.
pub(crate) fn template(pipeline: &Pipeline, text: &Text) -> String {
    let piece = |piece: &Piece| match piece {
        Piece::Plain(plain) => plain.clone(),
        Piece::Of(reference) => template_of(pipeline, reference),
    };
    text.0.iter().map(piece).collect()
}

pub(crate) fn template_of(pipeline: &Pipeline, reference: &Reference) -> String {
    let name = match reference {
        Reference::System(system) => system.name().to_owned(),
        Reference::Parameter(name) | Reference::Input(name) | Reference::Output(name) => name.clone(),
        Reference::Sibling { node, name } => format!("{}.{name}", pipeline.node(*node).name),
        Reference::Parent(name) => format!("PF_PARENT.{name}"),
        Reference::ParentItem => "PF_PARENT.PF_LOOP_ARGUMENT".to_owned(),
    };
    format!("{{{{{name}}}}}")
}

/// Lines as a string of dot.
fn quoted(lines: &[String]) -> String {
    let escape = |line: &String| umiak_core::diag::shown(line).replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", lines.iter().map(escape).collect::<Vec<_>>().join("\\n"))
}

/// The name and the colour of a state.
fn look(mark: Mark) -> (&'static str, &'static str) {
    match mark {
        Mark::Waiting => ("waiting", "#eeeeee"),
        Mark::Running => ("running", "#9ecbff"),
        Mark::Done => ("succeeded", "#a6e3a1"),
        Mark::Cached => ("cached", "#d5f0d3"),
        Mark::Failed => ("failed", "#f5a3a3"),
        Mark::Stopped => ("stopped", "#d0d0d0"),
        Mark::Restarted => ("restarted", "#ffe08a"),
        Mark::Lost => ("lost", "#ffd0a0"),
    }
}

/// A text in a label of Mermaid, which is HTML. Mermaid's own escapes, such as `#lt;`, are not shown as what they mean, and
/// a `#` before a word and a semicolon is taken for one.
fn of_html(text: &str) -> String {
    let escape = |letter: char| match letter {
        '&' => "&amp;".to_owned(),
        '"' => "&quot;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        ';' => "&semi;".to_owned(),
        other => other.to_string(),
    };
    umiak_core::diag::shown(text).chars().map(escape).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use std::fmt::Write as _;

    use umiak_core::diag::Source;
    use umiak_core::formats::{self, settings::Settings};
    use umiak_core::model::Workload;

    use super::*;

    /// The graph of a document, in 100 columns.
    fn drawn(graph: Graph, document: &str) -> String {
        let source = Source::new("pipeline.yaml", document);
        let document = formats::parse(&source, &formats::Given::new(&[], &Settings::default())).expect("a document");
        let Workload::Pipeline(pipeline) = &document.work else { panic!("a job") };
        let style = Style { fixed_width: Some(100), ..Style::default() };
        Drawing { pipeline, run: None }.draw(graph, &style)
    }

    pub(in crate::views) const FIVE: &str = r#"
name: ctr
entry_points:
  prepare: {command: a}
  split: {deps: prepare, command: a, loop_argument: [1, 2, 3]}
  check:
    deps: prepare
    entry_points:
      rows: {command: a}
      extra: {deps: rows, command: a, condition: '"<a>" == "b"'}
  train:
    deps: split, check
    distributed_job:
      framework: paddle
      members:
        - {role: pserver, replicas: 2, command: a}
        - {role: pworker, replicas: 2, command: a}
  evaluate: {deps: train, command: a}
post_process:
  notify: {command: a}
"#;

    #[test]
    fn a_label_is_only_a_text() {
        assert_eq!(
            of_html("<img onerror=\"x\"> & #lt; `\u{202e}`\n"),
            "&lt;img onerror=&quot;x&quot;&gt; &amp; #lt&semi; `\u{fffd}`␊"
        );
    }

    #[test]
    fn five_steps_with_a_loop_and_a_dag() {
        insta::assert_snapshot!("five_text", drawn(Graph::Text, FIVE));
        insta::assert_snapshot!("five_mermaid", drawn(Graph::Mermaid, FIVE));
        insta::assert_snapshot!("five_dot", drawn(Graph::Dot, FIVE));
    }

    #[test]
    fn sixty_steps() {
        let mut document = "name: sixty\nentry_points:\n  begin: {command: a}\n".to_owned();
        for step in 0..58 {
            let before = if step < 12 { "begin".to_owned() } else { format!("shard-{}", step - 12) };
            let _ = writeln!(document, "  shard-{step}: {{deps: {before}, command: a}}");
        }
        let shards: Vec<String> = (46..58).map(|step| format!("shard-{step}")).collect();
        let _ = writeln!(document, "  merge: {{deps: '{}', command: a}}", shards.join(", "));
        insta::assert_snapshot!("sixty_text", drawn(Graph::Text, &document));
    }
}
