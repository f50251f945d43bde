#!/usr/bin/env bash
# Install the system programs the tests run against (PostgreSQL's server, a C++ compiler, a browser, a false clock, Slurm for made-up hosts), where they are missing.
# With --deploy also what deploy/ is checked with (promtool, kubectl, systemd-analyze; buildah and mmdebstrap build the service's image).
set -euo pipefail
packages=()
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && command -v pg_virtualenv >/dev/null || packages+=(postgresql postgresql-common)
command -v g++ >/dev/null || packages+=(g++)
command -v chromium >/dev/null || packages+=(chromium fonts-dejavu-core)
ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1 || packages+=(libfaketime)
command -v ip >/dev/null || packages+=(iproute2)
command -v munged >/dev/null && command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v sbatch >/dev/null \
    || packages+=(munge slurmctld slurmd slurm-client)
if [ "${1:-}" = --deploy ]; then
    command -v promtool >/dev/null || packages+=(prometheus)
    if ! command -v kubectl >/dev/null; then
        echo "make check-deploy needs kubectl 1.21 or later (Debian 12's is older): https://kubernetes.io/docs/tasks/tools/" >&2
        exit 1
    fi
    command -v systemd-analyze >/dev/null || packages+=(systemd)
    command -v buildah >/dev/null || packages+=(buildah)
    command -v mmdebstrap >/dev/null || packages+=(mmdebstrap)
fi
if [ ${#packages[@]} -gt 0 ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq
        # The tests start their own daemons; those of the packages would stay (a script that says no is asked before each start).
        if [ ! -e /usr/sbin/policy-rc.d ]; then
            printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
            chmod +x /usr/sbin/policy-rc.d
            trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        fi
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
    else
        echo "tests need: ${packages[*]} (install them with your package manager)" >&2
        exit 1
    fi
fi
