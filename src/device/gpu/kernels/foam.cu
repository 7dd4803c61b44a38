// The kernels of libfoam: what cuBLAS and cuSOLVER do not have. Compiled ahead of time to foam.ptx by
// build.py; the host side is ../step.rs, ../factor.rs, ../qr.rs, ../soap.rs and ../courier.rs.
#include "certify.cuh"
#include "factor.cuh"
#include "qr.cuh"
#include "ranks.cuh"
#include "soap.cuh"
#include "step.cuh"
