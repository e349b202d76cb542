#!/bin/sh
# Before a build of minutes: says where this machine will allow no emulated WAN, which `geocomm wan` says in full once it is
# built. The same two things are tried: a network namespace, without or with a user namespace around it, and /dev/net/tun.
command -v unshare >/dev/null || exit 0
look='[ -c /dev/net/tun ] && exec 3<>/dev/net/tun'
if unshare --net sh -c "$look" 2>/dev/null || unshare --user --map-root-user --net sh -c "$look" 2>/dev/null; then
  exit 0
fi
echo "make: this machine allows no emulated WAN (CAP_SYS_ADMIN and CAP_NET_ADMIN or a user namespace, and /dev/net/tun):"
echo "make: the demo will train over loopback, and the tests on the emulated WAN will be left out"
