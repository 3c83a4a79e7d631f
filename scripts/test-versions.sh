#!/usr/bin/env bash
#
# Build and test on other PostgreSQL majors than this machine's own, each in a
# throwaway chroot (the examples are run on this machine's own only, and so are
# the tests that want a pooler or valgrind):
#
#     bash scripts/test-versions.sh [17] [18]         both by default
#
# Wants root, mmdebstrap and a Debian whose package lists are up to date
# (apt-get update).  Tests the tracked files as they are in the work tree.
# Prints one line a version and is silent otherwise; the log of a version that
# failed goes to standard error.
#
#     KEEP=1              keep the chroots and the logs, and say where
#     CHROOT_CACHE=DIR    keep each chroot as a tar file in DIR, and start from
#                         there the next time; delete the file to renew it
#
# Single quotes are for the inner shells to expand, clean_up is for the trap:
# shellcheck disable=SC2016,SC2317
set -euo pipefail

# Debian releases that carry the majors which this machine's own does not
declare -A RELEASE=([17]=trixie [18]=sid)

# The same path in every chroot, and a short one: socket paths end at 107 bytes
readonly TREE=/idem_tool

die()
{
	echo "test-versions.sh: $*" >&2
	exit 2
}

# Mounts are made in namespaces of their own (see in_chroot), so none can be
# left under $tmp; --one-file-system is the second lock on that door.
#
# After a signal a command may still run in a chroot: its process 1, the only
# child of unshare, takes the others along, and is gone when "wait" returns.
clean_up()
{
	local job

	for job in $(jobs -p); do
		pkill -KILL -P "$job" || true
	done
	wait
	if [ -n "${KEEP:-}" ]; then
		echo "kept: $tmp" >&2
	else
		rm -rf --one-file-system "$tmp"
	fi
}

# Where this machine gets Debian from; what it uses, we can reach
mirror()
{
	apt-get indextargets --format '$(REPO_URI)' \
		'Created-By: Packages' 'Label: Debian' | sort -u | sed -n 1p
}

# Debian's server-dev package depends on clang and llvm, which take longer to
# install than everything else and only serve bitcode: unpack it without them.
unpack_server_dev()
{
	cat <<-END
		cd /tmp
		apt-get download -qq postgresql-server-dev-$1
		dpkg --force-depends --unpack postgresql-server-dev-$1*.deb
		rm postgresql-server-dev-$1*.deb
	END
}

# Valid-Until is not checked: mirrors of sid are often a little behind.  The
# cluster that Debian creates on installation would serve nobody.
bootstrap()
{
	local version=$1 root=$2 hook

	hook=$(unpack_server_dev "$version")
	mmdebstrap --mode=root --variant=essential \
		--include="apt,perl,gcc,make,libc6-dev,libpq-dev" \
		--include="postgresql-$version,postgresql-$version-pgtap" \
		--include="libtap-parser-sourcehandler-pgtap-perl,libipc-run-perl" \
		--aptopt='Acquire::Check-Valid-Until "false"' \
		--dpkgopt='path-exclude=/usr/share/doc/*' \
		--dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' \
		--essential-hook='mkdir -p "$1/etc/postgresql-common/createcluster.d"' \
		--essential-hook='echo "create_main_cluster = false" \
			>"$1/etc/postgresql-common/createcluster.d/none.conf"' \
		--customize-hook="chroot \"\$1\" sh -ec '$hook'" \
		"${RELEASE[$version]}" "$root" "$mirror"
}

make_chroot()
{
	local version=$1 root=$2
	local cached=${CHROOT_CACHE:+$CHROOT_CACHE/postgresql-$version.tar}

	if [ -z "$cached" ]; then
		bootstrap "$version" "$root"
	elif [ -f "$cached" ]; then
		mkdir "$root" && tar -C "$root" -xpf "$cached"
	else
		# renamed when whole, lest an interrupted run leaves half a chroot
		bootstrap "$version" "$root" && mkdir -p "$CHROOT_CACHE" &&
			tar -C "$root" -cf "$cached.$$" . && mv "$cached.$$" "$cached"
	fi
}

# Run a command as root in a chroot, in namespaces of its own: mounts, stray
# servers and shared memory all end with it, however it ends.  Postgres wants
# /dev/shm, crash tests /proc.  The inner bash stays process 1, because it
# reaps what a killed postmaster leaves behind; nothing else in there would.
# "wait" because, unlike a command in the foreground, it yields to our traps.
in_chroot()
{
	local root=$1 version=$2
	shift 2

	unshare --mount --pid --ipc --fork --kill-child bash -ec '
		mount -t proc proc "$0/proc"
		mount -t tmpfs -o mode=1777 tmpfs "$0/dev/shm"
		chroot "$0" "$@"
		exit' \
		"$root" env -i LANG=C.UTF-8 HOME=/tmp \
		PATH="/usr/lib/postgresql/$version/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
		"$@" </dev/null &
	wait $!
}

# Tracked files only, as in a clone: a file that somebody forgot to add is
# missed here and not by the next one who clones.  Deleted ones are skipped.
copy_tree()
{
	local file

	mkdir "$1$TREE" &&
		git -C "$top" ls-files -z |
		while IFS= read -r -d '' file; do
			if [ -e "$top/$file" ]; then printf '%s\0' "$file"; fi
		done |
		tar -C "$top" --null --files-from=- -cf - |
		tar -C "$1$TREE" --no-same-owner -xf -
}

# The server's headers are not free of -Wextra's warnings, ours must be:
# -isystem silences the former.
build()
{
	in_chroot "$@" sh -ec '
		cd "$0"
		strict="-isystem $(pg_config --includedir-server) -Wall -Wextra -Werror"
		make -s with_llvm=no COPT="$strict"
		make -s with_llvm=no install
		chown -R postgres: .' "$TREE"
}

# initdb refuses root
run_suites()
{
	in_chroot "$@" sh -c 'cd "$0" &&
		exec runuser -u postgres -- env SKIP_OK=1 bash scripts/run-suites.sh \
			regress regress_preloaded isolation isolation_preloaded tap pgtap' "$TREE"
}

# Print the line of a version that failed, and why
failed()
{
	echo "$1: $2"
	sed 's/^/    /' "$3" >&2
	return 1
}

# One version, from nothing to its line of counts
test_version()
{
	local version=$1 root=$tmp/$1 log=$tmp/$1.log
	local name="PostgreSQL $1" counts status=0

	make_chroot "$version" "$root" >"$log" 2>&1 ||
		{ failed "$name" "no chroot" "$log"; return; }

	name=$(in_chroot "$root" "$version" pg_config --version 2>"$log") ||
		{ failed "PostgreSQL $version" "chroot does not run" "$log"; return; }
	name=${name%% (*}			# Debian adds its own version
	{ copy_tree "$root" && build "$root" "$version"; } >"$log" 2>&1 ||
		{ failed "$name" "build failed" "$log"; return; }

	run_suites "$root" "$version" >"$log" 2>&1 || status=$?
	counts=$(grep -xE '[0-9]+ passed, [0-9]+ failed.*' "$log" | tail -n 1) ||
		{ failed "$name" "suites broke off" "$log"; return; }
	case "$status $counts" in
		"0 0 passed"*) failed "$name" "ran no test" "$log" ;;
		"0 "*" passed, 0 failed"*) echo "$name: $counts" ;;
		*) failed "$name" "$counts" "$log" ;;
	esac
}

[ "$(id -u)" -eq 0 ] || die "needs root"
command -v mmdebstrap >/dev/null || die "needs mmdebstrap"
[ $# -gt 0 ] || set -- 17 18
for version; do
	[ -n "${RELEASE[$version]:-}" ] || die "knows ${!RELEASE[*]}, not $version"
done

top=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
mirror=$(mirror)
[ -n "$mirror" ] || die "apt knows no Debian mirror; try apt-get update"

# not /tmp, which may be small, in memory, or forbid device files
tmp=$(mktemp -d "${TMPDIR:-/var/tmp}/test-versions.XXXXXX")
trap clean_up EXIT
trap 'exit 130' INT TERM
chmod 755 "$tmp"				# apt downloads as a user of its own

result=0
for version; do
	test_version "$version" || result=1
done
exit $result
