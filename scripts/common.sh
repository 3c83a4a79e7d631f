# What the scripts have in common; sourced, not run.

# Temporary files are for several users, in paths without blanks, for make, and
# short ones, for sockets: the caller's own place for them may be none of this
unset TMPDIR
umask 022

# Run a command as root: directly, or by sudo
as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	else
		sudo "$@"
	fi
}

# Run a command as postgres; the server refuses to run as root
as_postgres() {
	as_root runuser -u postgres -- "$@"
}

# quietly LOG command...: show what the command printed only if it failed
quietly() {
	local log=$1
	shift
	if ! "$@" >"$log" 2>&1; then
		echo "failed: $*" >&2
		cat "$log" >&2
		return 1
	fi
}

# install_packages package...: those that are missing
install_packages() {
	local missing=() package
	for package in "$@"; do
		dpkg-query -W -f '${Status}' "$package" 2>/dev/null |
			grep -q 'ok installed' || missing+=("$package")
	done
	[ ${#missing[@]} -eq 0 ] && return
	as_root apt-get update -qq
	# no cluster of the distribution's: the tests make their own
	as_root mkdir -p /etc/postgresql-common/createcluster.d
	echo 'create_main_cluster = false' |
		as_root tee /etc/postgresql-common/createcluster.d/idem_tool.conf >/dev/null
	as_root env DEBIAN_FRONTEND=noninteractive \
		apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

# The PostgreSQL to build for; Debian 12 has 15
find_postgres() {
	local config
	config=${PG_CONFIG:-$(ls /usr/lib/postgresql/*/bin/pg_config | sort -V | tail -1)}
	export PG_CONFIG=$config
	bindir=$("$config" --bindir)
}

# copy_tree DIR: the work tree as git has it, with what is not committed yet.
# The tree may belong to somebody else, of which git is wary.
copy_tree() {
	mkdir -p "$1"
	git -c safe.directory='*' -C "$root" ls-files -z --cached --others --exclude-standard |
		(cd "$root" && xargs -0 sh -c 'for file; do
			[ ! -e "$file" ] || printf "%s\0" "$file"; done' _) |
		tar -C "$root" --null -T - -cf - | tar -C "$1" -xf -
}
