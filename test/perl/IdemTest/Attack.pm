# Attacks, and one judge of whether they have succeeded.
#
# Each runs in a database of its own, a copy of one with a role for each part:
#
#	app, victim		callers who have nothing in common
#	ops				an operator
#	nobody			has no grant of ours
#	dbo				owns the database, and is no superuser
#
# (of dbo as an attacker it is only asked what he gains beyond his database.)
#
# An attack has succeeded if the attacker has become more than he was, has been
# granted anything, has seen or changed what is another's, or has had code of
# his run as anybody but himself.  The last is told by the server's log, which
# an error does not roll back: all code of attackers calls note().
#
# Each attack has its control: on a copy whose objects were made weaker it does
# succeed.  Without that nobody would know whether it was tried at all.

package IdemTest::Attack;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IdemTest::Session;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;

our @EXPORT = qw(start_arena new_arena leave_arena people treasure
  attack gains_of as_role);

my ($node, $count);

# Whatever of a victim's or an operator's is seen has this in it
my $secret = 'treasure';

# What an attacker does where he is let: his code calls this
my $note = <<'END';
CREATE FUNCTION %1$s.note(what text) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
DECLARE
	command text;
	seen text;
BEGIN
	RAISE LOG 'trap of %1$s ran as "%%" in "%%"', current_user, what;
	-- what it does below must not fire it again
	IF current_user = '%1$s' OR current_setting('%1$s.inside', true) = 'yes' THEN
		RETURN true;
	END IF;
	PERFORM set_config('%1$s.inside', 'yes', true);
	FOREACH command IN ARRAY ARRAY[
		'ALTER ROLE %1$s SUPERUSER',
		'GRANT ALL ON ALL TABLES IN SCHEMA idem TO %1$s',
		'GRANT ALL ON SCHEMA idem TO %1$s',
		'UPDATE idem.idempotency_keys SET result = ''"forged"'' WHERE key = ''treasure kept''']
	LOOP
		BEGIN
			EXECUTE command;
		EXCEPTION WHEN OTHERS THEN
			NULL;
		END;
	END LOOP;
	BEGIN
		SELECT string_agg(k::text, ' ') INTO seen FROM idem.idempotency_keys AS k;
		RAISE LOG 'trap of %1$s saw "%%"', seen;
	EXCEPTION WHEN OTHERS THEN
		NULL;
	END;
	RETURN true;
END $$;
CREATE FUNCTION %1$s.trap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM %1$s.note(TG_NAME);
	IF TG_LEVEL = 'STATEMENT' THEN
		RETURN NULL;
	END IF;
	RAISE LOG 'trap of %1$s saw "%%"', COALESCE(NEW, OLD);
	RETURN COALESCE(NEW, OLD);
END $$;
END

my @people = ('app', 'victim', 'ops', 'nobody', 'dbo');

# A schema of his own, with his traps in it, that everybody can use
sub _room_of
{
	my ($role) = @_;

	return ("CREATE SCHEMA $role AUTHORIZATION $role",
		"GRANT USAGE ON SCHEMA $role TO PUBLIC",
		"SET ROLE $role", sprintf($note, $role), 'RESET ROLE');
}

# Make the server and the two databases that others are copies of: "base" has
# the extension in schema idem, "bare" has not; both have a tool.  %param may have
# "conf", lines for postgresql.conf.
sub start_arena
{
	my ($name, %param) = @_;

	$node = PostgreSQL::Test::Cluster->new($name);
	$node->init(extra => [ '--no-locale', '-E', 'UTF8' ]);
	$node->append_conf('postgresql.conf', <<"END");
log_statement = none
autovacuum = off
fsync = off
max_connections = 40
max_prepared_transactions = 5
@{[ $param{conf} // '' ]}
END
	$node->start;
	_run('postgres', map { "CREATE ROLE $_ LOGIN" } @people);
	_run('postgres', 'CREATE DATABASE bare');
	_run('bare', 'REVOKE ALL ON SCHEMA public FROM PUBLIC',
		'CREATE SCHEMA shared', 'GRANT USAGE ON SCHEMA shared TO PUBLIC',
		q{CREATE FUNCTION shared.same(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1'},
		map { _room_of($_) } 'app', 'nobody', 'dbo');
	_run('postgres', 'CREATE DATABASE base TEMPLATE bare OWNER dbo');
	_run('base', 'CREATE SCHEMA idem',
		'CREATE EXTENSION idem_tool SCHEMA idem',
		people(), treasure());
	_run('postgres', 'ALTER DATABASE base ALLOW_CONNECTIONS false',
		'ALTER DATABASE bare ALLOW_CONNECTIONS false');
	return $node;
}

# What the people in the arena are
sub people
{
	return (q{SELECT idem.idem_grant('app')}, q{SELECT idem.idem_grant('victim')},
		q{SELECT idem.idem_grant('ops', 'operator')});
}

# Put there what is to be stolen
sub treasure
{
	return (
		'SET ROLE victim',
		<<'END',
SELECT idem.idem_complete('treasure kept', '"treasure"', token)
FROM idem.idem_reserve('treasure kept')
END
		q{SELECT FROM idem.idem_reserve('treasure open', '1 day')},
		'RESET ROLE',
		'SET ROLE ops',
		q{SELECT idem.idem_resolve('treasure audited', 'done', '"treasure"', create_missing => true)},
		q{SELECT idem.idem_register('treasure', description => 'treasure')},
		q{SELECT idem.idem_register('honest tool')},
		'RESET ROLE',
		q{INSERT INTO idem.idem_audit VALUES ('2000-01-01', 'ops', 'ops', 'forget', '', 'honest', 'done', 'absent')});
}

sub _run
{
	my ($database, @sql) = @_;
	my $session = IdemTest::Session->new($node, dbname => $database);

	$session->query($_) foreach @sql;
	$session->run('RESET ROLE');
	$session->drop;
	return;
}

# A session of a role in the arena
sub as_role
{
	my ($database, $role) = @_;

	return IdemTest::Session->new($node, dbname => $database,
		defined $role ? (user => $role) : ());
}

# A new copy of base, or of "bare"
sub new_arena
{
	my ($template) = @_;
	my $database = 'arena' . ++$count;

	_run('postgres',
		"CREATE DATABASE $database TEMPLATE @{[ $template // 'base' ]} OWNER dbo");
	return $database;
}

# Leave nothing that a later attack could take for its own success
sub leave_arena
{
	my ($database) = @_;

	_run('postgres', "DROP DATABASE $database WITH (FORCE)",
		map { "ALTER ROLE $_ NOSUPERUSER NOCREATEROLE NOCREATEDB NOBYPASSRLS NOREPLICATION" }
		  @people);
	return;
}

# What a role is and what it is a member of
my $roles = <<'END';
SELECT 'role ' || rolname,
	concat_ws(' ', rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls, rolconfig)
FROM pg_roles WHERE rolname !~ '^pg_'
UNION ALL
SELECT 'members of ' || roleid::regrole, string_agg(member::regrole::text, ' ' ORDER BY member)
FROM pg_auth_members WHERE roleid::regrole::text !~ '^pg_' GROUP BY roleid
END

# The owner of a database may do there what he likes
my $databases = <<'END';
SELECT 'database ' || datname, concat_ws(' ', datdba::regrole, datacl, datallowconn)
FROM pg_database WHERE datdba <> 'dbo'::regrole
END

sub _owns
{
	return $_[0] eq 'dbo';
}

# Who owns and may do what with all that is there and is not the attacker's, and
# what functions and policies are
my $objects = <<'END';
SELECT 'database', concat_ws(' ', datdba::regrole, datacl)
FROM pg_database WHERE datname = current_database()
UNION ALL
SELECT 'schema ' || oid, concat_ws(' ', nspname, nspowner::regrole, nspacl)
FROM pg_namespace WHERE nspname !~ '^pg_' AND nspowner::regrole <> '%1$s'::regrole
UNION ALL
SELECT 'relation ' || c.oid, concat_ws(' ', relname, relkind, relowner::regrole,
	relacl, relrowsecurity, relnamespace, relrewrite, relhasrules)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace
WHERE nspname !~ '^pg_' AND relowner::regrole <> '%1$s'::regrole
UNION ALL
SELECT 'column ' || attrelid || ' ' || attnum, concat_ws(' ', attname, atttypid, attnotnull, attacl)
FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = attrelid JOIN pg_namespace AS n ON n.oid = relnamespace
WHERE nspname !~ '^pg_' AND relowner::regrole <> '%1$s'::regrole
UNION ALL
SELECT 'function ' || p.oid, concat_ws(' ', proname, proowner::regrole, proacl, prosecdef, proconfig, md5(prosrc), pronamespace)
FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = pronamespace
WHERE nspname !~ '^pg_' AND proowner::regrole <> '%1$s'::regrole
UNION ALL
SELECT 'type ' || t.oid, concat_ws(' ', typname, typowner::regrole, typacl)
FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = typnamespace
WHERE nspname !~ '^pg_' AND typowner::regrole <> '%1$s'::regrole
UNION ALL
SELECT 'policy ' || oid, concat_ws(' ', polname, polroles, polqual, polwithcheck) FROM pg_policy
UNION ALL
SELECT 'extension', concat_ws(' ', extowner::regrole, extnamespace) FROM pg_extension WHERE extname = 'idem_tool'
END

# What is another's; what honest people do meanwhile has "honest" in its name
my $contents = <<'END';
SELECT 'key ' || key, k::text FROM %1$s.idempotency_keys AS k
WHERE owner IN ('victim', 'ops') AND key LIKE 'treasure%%'
UNION ALL
SELECT 'audit', string_agg(a::text, ' ' ORDER BY a::text) FROM %1$s.idem_audit AS a
WHERE key NOT LIKE 'honest%%'
UNION ALL
SELECT 'tools', string_agg(t::text, ' ' ORDER BY tool) FROM %1$s.idem_tools AS t
WHERE tool NOT LIKE 'honest%%'
END

# All that an attacker could have changed, as a hash
sub _state
{
	my ($database, $attacker) = @_;
	my $session = as_role($database);
	my $schema = $session->query(q{SELECT extnamespace::regnamespace FROM pg_extension WHERE extname = 'idem_tool'});
	my %state;

	foreach my $sql ($roles,
		_owns($attacker)
		? $databases
		: (sprintf($objects, $attacker), $schema ? sprintf($contents, $schema) : ()))
	{
		my $answer = $session->run($sql);

		# who took the tables away has changed what is in them
		%state = (%state, contents => $answer->{sqlstate}), next if $answer->{sqlstate};
		$state{ $_->[0] } = $_->[1] // '' foreach @{ $answer->{rows} };
	}
	$session->drop;
	return \%state;
}

# What is not as it was; what is new is nobody's loss, but for a role's powers
sub _changes
{
	my ($before, $after) = @_;
	my @gains;

	foreach my $what (sort keys %$before)
	{
		my $now = $after->{$what} // 'gone';

		push @gains, "$what: $before->{$what} became $now"
		  if $now ne $before->{$what};
	}
	push @gains, map { "$_ is new: $after->{$_}" }
	  grep { /^members/ && !exists $before->{$_} } sort keys %$after;
	return @gains;
}

# What the traps have told the log since
sub _told
{
	my ($attacker, $himself, $from) = @_;
	my $log = slurp_file($node->logfile, $from);
	my @gains;

	while ($log =~ /trap of \Q$attacker\E ran as "([^"]+)" in "([^"]*)"/g)
	{
		push @gains, "code of $attacker ran as $1 ($2)" if $1 !~ $himself;
	}
	push @gains, "code of $attacker saw what is not his"
	  if !_owns($attacker) && $log =~ /trap of \Q$attacker\E saw ".*$secret/;
	return @gains;
}

# Run statements of an attacker's; what he sees.  He does not stop at an error.
sub _let
{
	my ($database, $attacker, @sql) = @_;
	my $session = as_role($database, $attacker);
	my @seen;

	foreach my $sql (@sql)
	{
		my $answer = $session->run($sql);

		push @seen, IdemTest::Session::text($answer);
		note("$attacker: $sql: $answer->{sqlstate} $answer->{message}")
		  if $answer->{sqlstate};
	}
	$session->drop;
	return join("\n", @seen);
}

sub _list
{
	my ($sql) = @_;

	return defined $sql ? ref $sql ? @$sql : $sql : ();
}

# Run statements of others', each [ role, statement ]; errors are part of it
sub _others
{
	my ($database, @acts) = @_;

	foreach my $act (@acts)
	{
		my ($role, $sql) = @$act;

		my $session = as_role($database, $role);
		my $answer = $session->run($sql);
		note(($role // 'superuser') . ": $sql: "
			  . ($answer->{sqlstate} ? "$answer->{sqlstate} $answer->{message}" : 'done'));
		$session->drop;
	}
	return;
}

# What the attack gains in an arena, with "weakened" or without
sub gains_of
{
	my ($database, $weakened, %attack) = @_;
	my $attacker = $attack{by} // 'app';
	my $himself = _owns($attacker) ? qr/^(?:dbo|pg_database_owner)$/ : qr/^\Q$attacker\E$/;
	my $from = -s $node->logfile;
	my @gains;

	_run($database, _list($attack{given}));
	_run($database, _list($attack{weak})) if $weakened;
	my $before = _state($database, $attacker);
	my $seen = _let($database, $attacker, _list($attack{does}));
	my $after = _state($database, $attacker);
	push @gains, _changes($before, $after);

	_run($database, _list($attack{weakened})) if $weakened;
	$before = _state($database, $attacker);
	_others($database, @{ $attack{others} // [] });
	$after = _state($database, $attacker);
	push @gains, _changes($before, $after);

	$seen .= _let($database, $attacker, _list($attack{gathers}));
	push @gains, "$attacker saw what is not his"
	  if !_owns($attacker) && $seen =~ /$secret/;
	push @gains, _told($attacker, $himself, $from);
	return @gains;
}

# Try an attack, and its control:
#
#	by			who (app)
#	given		statements of a superuser before: what the attacker may do
#	does		the attacker's statements
#	others		then, what others do: [ role, statement ] ...; undef: a superuser
#	gathers		the attacker's statements at the end
#	weak		statements of a superuser before "does" that make the control
#	weakened	the same, after it
#	gains		what the control must gain; none: there is no control
#	template	base or bare
sub attack
{
	my ($name, %attack) = @_;

	foreach my $weakened (0, $attack{gains} ? 1 : ())
	{
		my $database = new_arena($attack{template});
		my @gains = gains_of($database, $weakened, %attack);

		if ($weakened)
		{
			like(join("\n", @gains), $attack{gains}, "$name: the control succeeds");
		}
		else
		{
			is(join("\n", @gains), '', "$name: gains nothing");
		}
		leave_arena($database);
	}
	return;
}

1;
