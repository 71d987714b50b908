//! Selects devices from those of the machine and the request, and assigns them to processes.

use crate::diag::{Code, Diagnostic};
use crate::model::{Backend, Device, DeviceKind, DeviceRequest, Generation, Part, Processes, Request};

use super::{Inventory, Seat};

/// Devices and processes of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// `None` on CPU.
    pub kind: Option<DeviceKind>,
    /// The value to export so that devices can be numbered by position: `CUDA_VISIBLE_DEVICES=2,3`.
    pub visible: Option<String>,
    /// Devices of each process, by local rank; empty lists where none are assigned.
    pub processes: Vec<Vec<Device>>,
    pub notices: Vec<Diagnostic>,
}

impl Assignment {
    /// The GPUs assigned to processes of this node: the number of the device node, and the label. Empty inside a run of
    /// umiak, which already holds them.
    pub fn gpus(&self, inventory: &Inventory) -> Vec<(u32, String)> {
        if self.kind != Some(DeviceKind::Gpu) || inventory.env.contains_key("UMIAK_RUN") {
            return Vec::new();
        }
        let mut found: Vec<(u32, String)> = Vec::new();
        for device in self.processes.iter().flatten() {
            let is_it = |gpu: &&super::Gpu| gpu.index.to_string() == device.label || gpu.uuid == device.label;
            if let Some(gpu) = inventory.gpus.iter().find(is_it)
                && found.iter().all(|(minor, _)| *minor != gpu.minor)
            {
                found.push((gpu.minor, device.label.clone()));
            }
        }
        found
    }
}

/// The devices of this node that the user may name.
struct Visible {
    kind: DeviceKind,
    labels: Vec<String>,
    /// The variable that limits them, and its value, if set.
    limited_by: Option<(String, String)>,
}

/// Assigns devices to processes.
pub fn assign(request: &Request, inventory: &Inventory) -> Result<Assignment, Diagnostic> {
    if request.torch.is_some() {
        return leave_to_script(request, inventory);
    }
    let mut notices = Vec::new();
    let selected = if request.backend == Backend::Gloo { None } else { select(request, inventory, &mut notices)? };
    check_backend(request.backend, selected.as_ref().map(|(visible, _)| visible.kind))?;
    let Some((visible, chosen)) = selected else {
        // On CPU the number of processes is the length of the list, as on the machine that the list was written for.
        let listed = request.devices.as_ref().map(|request| request.ids.len() as u32);
        let count = request.processes.number().or(listed).unwrap_or(1).max(1);
        return Ok(Assignment { kind: None, visible: None, processes: vec![Vec::new(); count as usize], notices });
    };
    let device = |(label, position): (&String, u32)| Device { label: label.clone(), position };
    let devices: Vec<Device> = chosen.iter().zip(0..).map(device).collect();
    let processes = spread(request, &visible, &devices, &mut notices)?;
    let narrowed = request.devices.as_ref().map(|_| chosen.join(","));
    Ok(Assignment { kind: Some(visible.kind), visible: narrowed, processes, notices })
}

/// Processes that see every device and choose by their local rank, as under `torchrun`. If there are enough GPUs, each
/// process is taken to use the one with its number; nothing is exported, unless each is to see only its own.
fn leave_to_script(request: &Request, inventory: &Inventory) -> Result<Assignment, Diagnostic> {
    let visible = visible(None, inventory);
    let number = |kind: DeviceKind| visible.as_ref().filter(|it| it.kind == kind).map(|it| it.labels.len());
    let count = match request.processes {
        Processes::Number(number) => number as usize,
        Processes::PerCpu => inventory.cpus,
        Processes::Per(kind) => number(kind).ok_or_else(|| no_device(kind, inventory))?,
        Processes::PerDevice | Processes::PerDeviceOrCpu => {
            visible.as_ref().map_or(inventory.cpus, |it| it.labels.len())
        }
    };
    let is_virtual = request.torch.as_ref().is_some_and(|torch| torch.variables.virtual_local_rank);
    let labels = match visible.filter(|visible| visible.kind == DeviceKind::Gpu) {
        Some(visible) if is_virtual && visible.labels.len() < count => {
            let message = format!("`--virtual-local-rank` needs a GPU for each of {count} processes");
            return Err(Diagnostic::error(Code::L0006, message)
                .row("available", there_are(&visible, inventory))
                .hint("start fewer processes with `--nproc-per-node`"));
        }
        Some(visible) => visible.labels,
        None if is_virtual => (0..count).map(|number| number.to_string()).collect(),
        None => Vec::new(),
    };
    let (kind, processes) = if labels.len() < count {
        (None, vec![Vec::new(); count])
    } else {
        // A process that sees one device finds it at position 0.
        let position = |position: u32| if is_virtual { 0 } else { position };
        let devices = labels.into_iter().zip(0..).take(count);
        let devices = devices.map(|(label, number)| vec![Device { label, position: position(number) }]);
        (Some(DeviceKind::Gpu), devices.collect())
    };
    Ok(Assignment { kind, visible: None, processes, notices: Vec::new() })
}

/// The error for processes that are counted by devices that the node does not have.
fn no_device(kind: DeviceKind, inventory: &Inventory) -> Diagnostic {
    let word = kind.word();
    let error = Diagnostic::error(Code::L0005, format!("`--nproc-per-node {word}`: this machine has no {word}"));
    let error = match inventory.env.get(kind.visible_variable()) {
        Some(value) => error.row(kind.visible_variable(), value.clone()),
        None => error,
    };
    error.hint("use a number, or `auto` for one process per device, else per CPU")
}

/// Assigns devices to the processes of a parameter-server job. The legacy generation assigns one device to each process
/// except servers, in turn, and hides the others; the current one leaves the choice to the script.
pub fn assign_to(request: &Request, inventory: &Inventory, seats: &[Seat]) -> Result<Assignment, Diagnostic> {
    let mut notices = Vec::new();
    let selected = select(request, inventory, &mut notices)?;
    let nothing = || vec![Vec::new(); seats.len()];
    let Some((visible, chosen)) = selected else {
        return Ok(Assignment { kind: None, visible: None, processes: nothing(), notices });
    };
    if request.generation() == Generation::Current {
        let narrowed = request.devices.as_ref().map(|_| chosen.join(","));
        return Ok(Assignment { kind: Some(visible.kind), visible: narrowed, processes: nothing(), notices });
    }
    let mut turns = [0; Part::ALL.len()];
    let device = |seat: &Seat| {
        if seat.part == Part::Server {
            return Vec::new();
        }
        let turn = &mut turns[seat.part as usize];
        let label = chosen[*turn % chosen.len()].clone();
        *turn += 1;
        vec![Device { label, position: 0 }]
    };
    Ok(Assignment { kind: Some(visible.kind), visible: None, processes: seats.iter().map(device).collect(), notices })
}

/// The devices to use and their kind; `None` on CPU.
fn select(
    request: &Request,
    inventory: &Inventory,
    notices: &mut Vec<Diagnostic>,
) -> Result<Option<(Visible, Vec<String>)>, Diagnostic> {
    let wanted = request.devices.as_ref();
    let visible = visible(wanted, inventory);
    match (wanted, visible) {
        (None, None) => Ok(None),
        (None, Some(visible)) => {
            let labels = visible.labels.clone();
            Ok(Some((visible, labels)))
        }
        (Some(devices), None) => {
            if devices.kind.is_none_or(|kind| kind == DeviceKind::Gpu) && !inventory.idle_gpus.is_empty() {
                return Err(no_driver(devices, inventory));
            }
            notices.push(
                Diagnostic::notice(
                    Code::L0020,
                    format!("`{}` names devices, but this machine has none; running on CPU", devices.source),
                )
                .row("processes", request.processes.number().unwrap_or(devices.ids.len() as u32).to_string()),
            );
            Ok(None)
        }
        (Some(devices), Some(visible)) => {
            let chosen = choose(devices, &visible, inventory)?;
            Ok(Some((visible, chosen)))
        }
    }
}

/// The error for GPUs without a working driver: on CPU the job would only seem to work.
fn no_driver(devices: &DeviceRequest, inventory: &Inventory) -> Diagnostic {
    let found = inventory.idle_gpus.iter().map(|gpu| match &gpu.driver {
        Some(driver) => format!("{} (driver `{driver}`)", gpu.pci),
        None => format!("{} (no driver)", gpu.pci),
    });
    let message = format!("`{}` names devices, but the NVIDIA driver is not working", devices.source);
    Diagnostic::error(Code::L0033, message)
        .row("on the bus", found.collect::<Vec<_>>().join("\n"))
        .row("driver", "lists no GPU in `/proc/driver/nvidia/gpus`")
        .hint("load the driver (`modprobe nvidia`, then `nvidia-smi` lists the GPUs)")
        .hint(format!("to try the job on CPU, use `--nproc_per_node N` instead of `{}`", devices.source))
}

fn visible(request: Option<&DeviceRequest>, inventory: &Inventory) -> Option<Visible> {
    let kinds = match request.and_then(|request| request.kind) {
        Some(kind) => vec![kind],
        // `--devices` and an omitted list use the devices of the machine, in Paddle's order of search.
        None => vec![DeviceKind::Xpu, DeviceKind::Npu, DeviceKind::Mlu, DeviceKind::Gpu],
    };
    kinds.into_iter().find_map(|kind| {
        let variable = kind.visible_variable();
        let limited_by = inventory
            .env
            .get(variable)
            .filter(|value| *value != "all")
            .map(|value| (variable.to_owned(), value.clone()));
        let labels: Vec<String> = match (&limited_by, kind) {
            (Some((_, value)), _) => {
                value.split(',').map(|label| label.trim().to_owned()).filter(|label| !label.is_empty()).collect()
            }
            (None, DeviceKind::Gpu) => inventory.gpus.iter().map(|gpu| gpu.index.to_string()).collect(),
            // These have no driver file to read, so the list is not checked.
            (None, DeviceKind::Xpu | DeviceKind::Npu | DeviceKind::Mlu) => request
                .filter(|request| request.kind == Some(kind))
                .map(|request| request.ids.clone())
                .unwrap_or_default(),
        };
        (!labels.is_empty()).then_some(Visible { kind, labels, limited_by })
    })
}

fn choose(request: &DeviceRequest, visible: &Visible, inventory: &Inventory) -> Result<Vec<String>, Diagnostic> {
    let is_there = |id: &String| {
        visible.labels.contains(id)
            || visible.limited_by.is_none() && inventory.gpus.iter().any(|gpu| !gpu.uuid.is_empty() && gpu.uuid == *id)
    };
    let missing: Vec<&str> = request.ids.iter().filter(|id| !is_there(id)).map(String::as_str).collect();
    if missing.is_empty() {
        return Ok(request.ids.clone());
    }
    let word = visible.kind.word();
    let what = format!("{word} {}", missing.join(", "));
    let mut diagnostic = match &visible.limited_by {
        Some((variable, value)) => {
            Diagnostic::error(Code::L0005, format!("`{}` names {what}, which `{variable}` hides", request.source))
                .row(variable.clone(), value.clone())
        }
        None => Diagnostic::error(
            Code::L0005,
            format!("`{}` names {what}, which this machine does not have", request.source),
        ),
    };
    diagnostic = diagnostic.row("available", there_are(visible, inventory));
    Err(diagnostic
        .hint(format!("numbers are physical device numbers; omit `{}` to use every available {word}", request.source)))
}

/// One line for each device: number and name.
fn there_are(visible: &Visible, inventory: &Inventory) -> String {
    visible
        .labels
        .iter()
        .map(|label| {
            let named = inventory.gpus.iter().find(|gpu| gpu.index.to_string() == *label && !gpu.name.is_empty());
            match named {
                Some(gpu) if visible.kind == DeviceKind::Gpu => {
                    format!("{} {label} ({})", visible.kind.word(), gpu.name)
                }
                _ => format!("{} {label}", visible.kind.word()),
            }
        })
        .collect::<Vec<_>>()
        .join("\n")
}

fn check_backend(backend: Backend, kind: Option<DeviceKind>) -> Result<(), Diagnostic> {
    let (needed, fits) = match backend {
        Backend::Nccl => ("GPUs", kind == Some(DeviceKind::Gpu)),
        Backend::Bkcl => ("XPUs", kind == Some(DeviceKind::Xpu)),
        Backend::Hccl => ("NPUs", kind == Some(DeviceKind::Npu)),
        Backend::Auto | Backend::Gloo | Backend::Cncl | Backend::Xccl | Backend::Heter => return Ok(()),
    };
    if fits {
        return Ok(());
    }
    Err(Diagnostic::error(
        Code::L0007,
        format!("backend `{}` needs {needed}, but this machine has none", backend.as_str()),
    )
    .row("Paddle says", backend.not_compiled())
    .hint("use `--backend gloo` to run on CPU, or leave out `--backend` and `PADDLE_DISTRI_BACKEND`"))
}

/// Distributes devices over processes by the rule of the generation.
fn spread(
    request: &Request,
    visible: &Visible,
    devices: &[Device],
    notices: &mut Vec<Diagnostic>,
) -> Result<Vec<Vec<Device>>, Diagnostic> {
    let count = devices.len();
    let wanted = request.processes.number().map_or(count, |wanted| wanted as usize).max(1);
    let word = visible.kind.word();
    let mut labels: Vec<&str> = devices.iter().map(|device| device.label.as_str()).collect();
    labels.sort_unstable();
    if labels.windows(2).any(|pair| pair[0] == pair[1]) && !request.share_devices {
        return Err(Diagnostic::error(Code::L0006, format!("a {word} is listed twice"))
            .row("listed", Device::labels(devices))
            .hint("name each device once, or let processes share one with `--share-devices`"));
    }
    if wanted > count {
        if request.share_devices {
            return Ok((0..wanted).map(|process| vec![devices[process % count].clone()]).collect());
        }
        let Some(listed) = &request.devices else {
            notices.push(
                Diagnostic::notice(
                    Code::L0021,
                    format!(
                        "{wanted} processes and {count} {word}{}: started without assigning devices",
                        plural(count)
                    ),
                )
                .hint("`--share-devices` lets several processes use one device"),
            );
            return Ok(vec![Vec::new(); wanted]);
        };
        return Err(Diagnostic::error(
            Code::L0006,
            format!("{wanted} processes cannot share {count} {word}{}", plural(count)),
        )
        .row("--nproc_per_node", wanted.to_string())
        .row(listed.source.clone(), listed.ids.join(","))
        .hint("name more devices, start fewer processes, or share them with `--share-devices`"));
    }
    if wanted == 1 {
        return Ok(vec![devices.to_vec()]);
    }
    match request.generation() {
        Generation::Current => Ok(devices[..wanted].iter().map(|device| vec![device.clone()]).collect()),
        Generation::Legacy if count.is_multiple_of(wanted) => {
            Ok(devices.chunks(count / wanted).map(<[Device]>::to_vec).collect())
        }
        Generation::Legacy => Err(Diagnostic::error(
            Code::L0006,
            format!("{count} {word}{} cannot be split evenly over {wanted} processes", plural(count)),
        )
        .row("--nproc_per_node", wanted.to_string())
        .row(format!("{word}s"), Device::labels(devices))
        .hint("choose a number of processes that divides the number of devices")),
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::request::tests::request;
    use crate::plan::Gpu;

    fn inventory(gpus: u32, env: &[(&str, &str)]) -> Inventory {
        Inventory {
            gpus: (0..gpus)
                .map(|index| Gpu {
                    index,
                    name: "NVIDIA H200".into(),
                    uuid: format!("GPU-{index}"),
                    numa_node: None,
                    minor: index,
                })
                .collect(),
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            ..Inventory::default()
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "reads as the field it fills")]
    fn listed(flag: &str, kind: Option<DeviceKind>, ids: &str) -> Option<DeviceRequest> {
        Some(DeviceRequest { source: flag.into(), kind, ids: ids.split(',').map(str::to_owned).collect() })
    }

    /// `visible; label@position+label@position, …` or the code.
    fn seen(result: &Result<Assignment, Diagnostic>) -> String {
        match result {
            Err(diagnostic) => diagnostic.code.to_string(),
            Ok(assignment) => {
                let processes: Vec<String> = assignment
                    .processes
                    .iter()
                    .map(|devices| {
                        let devices: Vec<String> =
                            devices.iter().map(|device| format!("{}@{}", device.label, device.position)).collect();
                        if devices.is_empty() { "-".to_owned() } else { devices.join("+") }
                    })
                    .collect();
                let notices = assignment.notices.iter().map(|notice| notice.code.to_string());
                let shown: Vec<String> = processes.into_iter().chain(notices).collect();
                format!("{}; {}", assignment.visible.as_deref().unwrap_or("*"), shown.join(" "))
            }
        }
    }

    type Case<'a> = (u32, &'a [(&'a str, &'a str)], Generation, Option<DeviceRequest>, Option<u32>, bool, &'a str);

    #[test]
    fn table() {
        use Generation::{Current, Legacy};
        let gpu = Some(DeviceKind::Gpu);
        let cases: &[Case<'_>] = &[
            (0, &[], Current, None, None, false, "*; -"),
            (0, &[], Current, None, Some(3), false, "*; - - -"),
            (4, &[], Current, None, None, false, "*; 0@0 1@1 2@2 3@3"),
            (8, &[], Current, listed("--gpus", gpu, "2,3"), None, false, "2,3; 2@0 3@1"),
            (8, &[], Legacy, listed("--gpus", gpu, "2,3"), None, false, "2,3; 2@0 3@1"),
            (
                8,
                &[("CUDA_VISIBLE_DEVICES", "4,5,6,7")],
                Current,
                listed("--devices", None, "5,7"),
                None,
                false,
                "5,7; 5@0 7@1",
            ),
            (8, &[("CUDA_VISIBLE_DEVICES", "4,5")], Current, None, None, false, "*; 4@0 5@1"),
            (8, &[("CUDA_VISIBLE_DEVICES", "4,5")], Current, listed("--gpus", gpu, "3"), None, false, "L0005"),
            (8, &[("CUDA_VISIBLE_DEVICES", "")], Current, None, None, false, "*; -"),
            (8, &[("CUDA_VISIBLE_DEVICES", "all")], Current, listed("--gpus", gpu, "7"), None, false, "7; 7@0"),
            (1, &[], Current, listed("--gpus", gpu, "3"), None, false, "L0005"),
            (2, &[], Current, listed("--gpus", gpu, "GPU-1"), None, false, "GPU-1; GPU-1@0"),
            (
                2,
                &[("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b")],
                Current,
                listed("--gpus", gpu, "MIG-b"),
                None,
                false,
                "MIG-b; MIG-b@0",
            ),
            (0, &[], Current, listed("--gpus", gpu, "0,1,2"), None, false, "*; - - - L0020"),
            (0, &[], Current, listed("--gpus", gpu, "0,1,2"), Some(2), false, "*; - - L0020"),
            (4, &[], Current, None, Some(1), false, "*; 0@0+1@1+2@2+3@3"),
            (4, &[], Current, None, Some(2), false, "*; 0@0 1@1"),
            (4, &[], Legacy, None, Some(2), false, "*; 0@0+1@1 2@2+3@3"),
            (4, &[], Legacy, None, Some(3), false, "L0006"),
            (2, &[], Current, None, Some(4), false, "*; - - - - L0021"),
            (2, &[], Current, listed("--gpus", gpu, "0,1"), Some(4), false, "L0006"),
            (2, &[], Current, listed("--gpus", gpu, "0,1"), Some(4), true, "0,1; 0@0 1@1 0@0 1@1"),
            (2, &[], Current, listed("--gpus", gpu, "0,0"), None, false, "L0006"),
            (0, &[], Current, listed("--xpus", Some(DeviceKind::Xpu), "0,1"), None, false, "0,1; 0@0 1@1"),
            (0, &[("XPU_VISIBLE_DEVICES", "2,3")], Current, None, None, false, "*; 2@0 3@1"),
            (
                8,
                &[],
                Legacy,
                listed("--mlus", Some(DeviceKind::Mlu), "0,1,2,3"),
                Some(2),
                false,
                "0,1,2,3; 0@0+1@1 2@2+3@3",
            ),
        ];
        for (gpus, env, generation, devices, nproc, share, expected) in cases {
            let mut request = request();
            request.paddle.as_mut().unwrap().variables.generation = *generation;
            request.devices.clone_from(devices);
            request.processes = nproc.map_or(Processes::PerDevice, Processes::Number);
            request.share_devices = *share;
            assert_eq!(
                seen(&assign(&request, &inventory(*gpus, env))),
                *expected,
                "{gpus} {env:?} {devices:?} {nproc:?}"
            );
        }
    }

    #[test]
    fn backends_need_their_devices() {
        let mut request = request();
        request.backend = Backend::Nccl;
        assert_eq!(seen(&assign(&request, &inventory(0, &[]))), "L0007");
        assert_eq!(seen(&assign(&request, &inventory(1, &[]))), "*; 0@0");
        request.backend = Backend::Gloo;
        request.devices = listed("--gpus", Some(DeviceKind::Gpu), "0,1");
        assert_eq!(seen(&assign(&request, &inventory(2, &[]))), "*; - -");
    }

    #[test]
    fn what_is_there_is_listed_by_name() {
        let mut request = request();
        request.devices = listed("--gpus", Some(DeviceKind::Gpu), "0,3");
        let diagnostic = assign(&request, &inventory(2, &[])).unwrap_err();
        assert_eq!(
            diagnostic.to_plain(),
            "error[L0005]: `--gpus` names gpu 3, which this machine does not have\n  available  gpu 0 (NVIDIA H200)\n             gpu 1 (NVIDIA H200)\nhint: numbers are physical device numbers; omit `--gpus` to use every available gpu\n"
        );
    }
}
