//! Slurm: what is submitted, and what it says about a job.
