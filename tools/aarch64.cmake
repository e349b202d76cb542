# For `cmake --toolchain`: 64-bit Arm by Debian's cross compiler, with that architecture's libraries beside this machine's:
#
#   dpkg --add-architecture arm64 && apt-get update
#   apt-get install g++-aarch64-linux-gnu qemu-user libssl-dev:arm64 libzstd-dev:arm64 libgtest-dev:arm64
#
# What is built runs here by qemu-user, also where the system does not know of it (binfmt_misc).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
# The compiler's libstdc++ lies beside a libc of its own: with that one's folder on a path, threads get one libc's loader and
# the other's library, and hang.
set(CMAKE_EXE_LINKER_FLAGS_INIT -static-libstdc++)
# Else CMake's search for OpenSSL is told of this machine's.
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig)
