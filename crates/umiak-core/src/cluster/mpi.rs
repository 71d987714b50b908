//! `mpirun`: its command line.
