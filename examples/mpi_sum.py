"""Ranks of Open MPI add up their numbers. The library is called directly, so that no package is needed."""

import ctypes
import os

mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)


def constant(name):
    return ctypes.byref(ctypes.c_char.in_dll(mpi, "ompi_mpi_" + name))


mpi.MPI_Init(None, None)
rank, total = ctypes.c_int(int(os.environ["OMPI_COMM_WORLD_RANK"])), ctypes.c_int()
mpi.MPI_Allreduce(
    ctypes.byref(rank), ctypes.byref(total), 1, constant("int"), constant("op_sum"), constant("comm_world")
)
print(f"rank {rank.value} on worker {os.environ['UMIAK_INDEX']}: the sum is {total.value}", flush=True)
mpi.MPI_Finalize()
