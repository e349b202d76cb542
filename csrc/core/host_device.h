// For functions that kernels call as well.
#pragma once

#ifdef __CUDACC__
#define GEOCOMM_HOST_DEVICE __host__ __device__
#else
#define GEOCOMM_HOST_DEVICE
#endif
