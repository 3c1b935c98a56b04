# Builds for aarch64 Linux on another processor, and runs what it builds under qemu's user mode:
#
#   cmake -S . -B build-aarch64 -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux.cmake -DTN_ROOT=ROOT
#
# ROOT is a root directory of that processor: Python with its headers, glibc with its own, and in the
# folder of Python's local packages PyTorch. cmake/aarch64_root.sh makes one; docs/compatibility.md says
# what was run so. It needs CMake 4.1, whose FindPython uses the emulator.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

# Trial builds of CMake's own read this file too, and see what is named here.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TN_ROOT)
get_filename_component(TN_ROOT "${TN_ROOT}" ABSOLUTE)
if(NOT EXISTS "${TN_ROOT}/usr/include/stdio.h")
  message(FATAL_ERROR "${TN_ROOT} is no root directory with glibc's headers; make one by "
                      "cmake/aarch64_root.sh DIRECTORY and say -DTN_ROOT=DIRECTORY")
endif()

set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_SYSROOT "${TN_ROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -cpu neoverse-n1 -L "${TN_ROOT}")
set(Python_EXECUTABLE "${TN_ROOT}/usr/bin/python3.11" CACHE FILEPATH "Python of that processor")
