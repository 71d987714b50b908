//! Jobs on Kubernetes: the objects of a plan, as JSON. They need nothing of umiak in the image, and no access to the API
//! from a pod. See `docs/design/0013-kubernetes.md`.

pub mod names;
#[cfg(test)]
mod patch;
#[cfg(test)]
mod prologue;
#[cfg(test)]
mod variables;

pub use self::names::Names;
