# Finds the torch 2.11 Python package and offers it as the target snug_torch, without torch's own CMake files: those
# demand nvcc for every program that links a CUDA wheel. A CPU build links libtorch_cpu and libc10 only.
set(SNUG_HAS_TORCH OFF)
set(SNUG_HAS_CUDA OFF)
set(SNUG_HAS_NCCL OFF)
if(SNUG_TORCH STREQUAL "OFF")
  return()
endif()

if(NOT SNUG_TORCH)
  execute_process(COMMAND python3 -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
                  OUTPUT_VARIABLE SNUG_TORCH OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT SNUG_TORCH OR NOT EXISTS "${SNUG_TORCH}/version.py")
  message(FATAL_ERROR "no torch package found: expected a folder with version.py, got '${SNUG_TORCH}'; "
                      "set -DSNUG_TORCH=/path/to/site-packages/torch, or -DSNUG_TORCH=OFF for the core alone")
endif()
file(STRINGS "${SNUG_TORCH}/version.py" version_line REGEX "^__version__ = ")
string(REGEX REPLACE ".*'([0-9.]+).*" "\\1" torch_version "${version_line}")
if(NOT torch_version MATCHES "^2\\.11(\\.|$)")
  message(FATAL_ERROR "torch 2.11 is needed, ${SNUG_TORCH} holds ${torch_version}")
endif()
set(SNUG_HAS_TORCH ON)

find_program(SNUG_NVCC nvcc HINTS /usr/local/cuda/bin)
if(SNUG_CUDA STREQUAL "AUTO")
  if(SNUG_NVCC AND EXISTS "${SNUG_TORCH}/lib/libtorch_cuda.so" AND EXISTS "${SNUG_TORCH}/../nvidia/cudnn")
    set(SNUG_HAS_CUDA ON)
  endif()
else()
  set(SNUG_HAS_CUDA ${SNUG_CUDA})
endif()

add_library(snug_torch INTERFACE)
target_include_directories(snug_torch SYSTEM INTERFACE
  $<BUILD_INTERFACE:${SNUG_TORCH}/include> $<BUILD_INTERFACE:${SNUG_TORCH}/include/torch/csrc/api/include>)
target_compile_definitions(snug_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
target_link_libraries(snug_torch INTERFACE
  $<BUILD_INTERFACE:${SNUG_TORCH}/lib/libtorch_cpu.so> $<BUILD_INTERFACE:${SNUG_TORCH}/lib/libc10.so>)

if(SNUG_HAS_CUDA)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    execute_process(COMMAND nvidia-smi -L OUTPUT_QUIET ERROR_QUIET RESULT_VARIABLE no_gpu)
    if(no_gpu)
      set(CMAKE_CUDA_ARCHITECTURES 90)
    else()
      set(CMAKE_CUDA_ARCHITECTURES native)
    endif()
  endif()
  set(CMAKE_CUDA_COMPILER ${SNUG_NVCC})
  set(CMAKE_CUDA_STANDARD 17)
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  # Nothing of ours names a symbol of libtorch_cuda, but its kernels register themselves when it is loaded.
  target_link_libraries(snug_torch INTERFACE
    $<BUILD_INTERFACE:-Wl,--push-state,--no-as-needed> $<BUILD_INTERFACE:${SNUG_TORCH}/lib/libtorch_cuda.so>
    $<BUILD_INTERFACE:-Wl,--pop-state> $<BUILD_INTERFACE:${SNUG_TORCH}/lib/libc10_cuda.so>
    $<BUILD_INTERFACE:CUDA::cudart>)
  # The very libraries that torch loads: two of them in one process would be two worlds.
  find_file(SNUG_CUBLASLT_LIBRARY libcublasLt.so.${CUDAToolkit_VERSION_MAJOR} NO_DEFAULT_PATH
            HINTS "${SNUG_TORCH}/../nvidia/cu${CUDAToolkit_VERSION_MAJOR}/lib" "${SNUG_TORCH}/../nvidia/cublas/lib" "${SNUG_TORCH}/lib")
  if(SNUG_CUBLASLT_LIBRARY)
    cmake_path(GET SNUG_CUBLASLT_LIBRARY PARENT_PATH SNUG_CUBLASLT_FOLDER)
  else()
    set(SNUG_CUBLASLT_LIBRARY CUDA::cublasLt)
  endif()
  find_path(SNUG_NCCL_INCLUDE nccl.h HINTS "${SNUG_TORCH}/../nvidia/nccl/include" NO_DEFAULT_PATH)
  find_file(SNUG_NCCL_LIBRARY libnccl.so.2 HINTS "${SNUG_TORCH}/../nvidia/nccl/lib" NO_DEFAULT_PATH)
  if(SNUG_NCCL_INCLUDE AND SNUG_NCCL_LIBRARY)
    set(SNUG_HAS_NCCL ON)
  endif()
endif()
message(STATUS "snug: torch ${torch_version} at ${SNUG_TORCH}, CUDA ${SNUG_HAS_CUDA}, NCCL ${SNUG_HAS_NCCL}")
