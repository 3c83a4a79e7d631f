# The worker and the table: extension dropped, locks, triggers, foreign keys.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(time);
use IPC::Run;
use Test::More;

my $node = new_server('main');
my ($offset, $started);

$node->append_conf('postgresql.conf', "idem_tool.naptime = 10ms\n");
$node->reload;
$node->safe_psql('postgres', 'CREATE EXTENSION idem_tool');
$node->safe_psql('postgres', 'CREATE DATABASE d');

sub swept
{
	my ($db, $where, $what) = @_;
	return ok(
		$node->poll_query_until($db,
			"SELECT count(*) = 0 FROM idempotency_keys WHERE $where"),
		$what);
}

# --- DROP EXTENSION and CREATE EXTENSION while it sweeps (10, 11)

$offset = -s $node->logfile;
$started = time;
for my $i (1 .. 50)
{
	$node->safe_psql('d',
		    "SET statement_timeout = '${PostgreSQL::Test::Utils::timeout_default}s'; CREATE EXTENSION idem_tool;"
		  . ($i % 5 ? '' : lapsed('x', 5000))
		  . ' SELECT pg_sleep(0.02); DROP EXTENSION idem_tool;');
}
pass(sprintf('50 times CREATE and DROP EXTENSION, %.1f s', time - $started));
is(count_in_log($node, qr/deadlock|ERROR|FATAL/, $offset),
	0, 'without deadlocks or errors');

# A table of the same name that is not the extension's
$node->safe_psql('d',
	"CREATE TABLE idempotency_keys (LIKE pg_class); INSERT INTO idempotency_keys SELECT * FROM pg_class"
);
my $stranger = $node->safe_psql('d', 'SELECT count(*) FROM idempotency_keys');
$node->reload;
wait_rounds($node, 'postgres', 5);
is($node->safe_psql('d', 'SELECT count(*) FROM idempotency_keys'),
	$stranger, "a stranger's table is not touched");
is(count_in_log($node, qr/ERROR|FATAL/, $offset), 0, 'nor complained about');
$node->safe_psql('d', 'DROP TABLE idempotency_keys');

# In another schema, which nobody's search_path has
$node->safe_psql('d', 'CREATE SCHEMA "Odd one"; CREATE EXTENSION idem_tool SCHEMA "Odd one"');
$node->safe_psql('d', 'SET search_path = "Odd one";' . lapsed('schema', 1));
ok( $node->poll_query_until('d',
		q{SELECT status = 'expired' FROM "Odd one".idempotency_keys}),
	'the extension is found in any schema');
$node->safe_psql('d', 'DROP EXTENSION idem_tool');

# --- somebody wants the table for himself (13)

$node->safe_psql('postgres', lapsed('locked', 20000));
my @took;
for (1 .. 20)
{
	$started = time;
	$node->safe_psql('postgres',
		'BEGIN; LOCK TABLE idempotency_keys IN ACCESS EXCLUSIVE MODE; COMMIT');
	push @took, time - $started;
}
@took = sort { $a <=> $b } @took;
cmp_ok($took[10], '<', 2,
	sprintf('LOCK TABLE gets through, usually in %.2f s', $took[10]));
add_witness($node);
my $psql = $node->background_psql('postgres');
$psql->query_safe('BEGIN; LOCK TABLE idempotency_keys IN ACCESS EXCLUSIVE MODE');
wait_rounds($node, 'witness', 5);
is( $node->safe_psql('postgres',
		"SELECT count(*) FROM pg_locks WHERE NOT granted"),
	'0', 'the worker does not queue for a locked table');

# whoever calls the sweep does not want to hear of a lock of a moment, which
# VACUUM takes when it shortens the table
my $patient = IPC::Run::start(
	[ 'psql', '-X', '-A', '-t', '-d', $node->connstr('postgres'),
		'-c', 'SELECT pages > 0 FROM idem_sweep()' ],
	'>', \my $answer, '2>', \my $complaint);
$node->poll_query_until('postgres',
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ '^SELECT pages' AND wait_event IS NOT NULL}
);
$psql->query_safe('COMMIT');
$patient->finish;
is($answer . $complaint, "t\n", 'idem_sweep() waits for the table');
$psql->query_safe('BEGIN; LOCK TABLE idempotency_keys IN ACCESS EXCLUSIVE MODE');
$node->psql('postgres', 'SELECT idem_sweep()', stderr => \$complaint,
	extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);
like($complaint, qr/55P03/, 'but not for ever');
$psql->query_safe('COMMIT');

# --- locked rows are skipped, and swept later

$psql->query_safe("BEGIN; SELECT key FROM idempotency_keys WHERE key = 'locked1' FOR UPDATE");
$node->safe_psql('postgres', "UPDATE idempotency_keys SET expires_at = now() - interval '1 hour' WHERE key <> 'locked1'");
$psql->query_safe("UPDATE idempotency_keys SET expires_at = now() - interval '1 hour' WHERE key = 'locked1'");
swept('postgres', "key <> 'locked1'", 'a locked row stops no other');
is( $node->safe_psql('postgres',
		"SELECT count(*) FROM idempotency_keys WHERE key = 'locked1'"),
	'1', 'and is skipped');
$psql->query_safe('COMMIT');
swept('postgres', 'true', 'until it is free');

# --- a foreign key and a trigger that refuse

$offset = -s $node->logfile;
$node->safe_psql('postgres', "ALTER DATABASE postgres SET idem_tool.worker = off");
wait_rounds($node, 'witness', 3);
$node->safe_psql('postgres', forgotten('ref', 300) . forgotten('free', 300));
$node->safe_psql('postgres', forgotten('bad', 300) . <<'SQL');
CREATE TABLE charge (scope text COLLATE "C" DEFAULT '', key text COLLATE "C",
	FOREIGN KEY (scope, key) REFERENCES idempotency_keys (scope, key));
INSERT INTO charge SELECT '', key FROM idempotency_keys WHERE key LIKE 'ref%1';
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN IF OLD.key LIKE 'bad%7' THEN RAISE 'not this one'; END IF; RETURN OLD; END $$;
CREATE TRIGGER refuse BEFORE DELETE ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION refuse();
CREATE FUNCTION veto() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RETURN CASE WHEN OLD.key LIKE 'bad%5' THEN NULL ELSE OLD END; END $$;
CREATE TRIGGER veto BEFORE DELETE ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION veto();
SQL
my $refused = $node->safe_psql('postgres', 'SELECT count(*) FROM charge');
$node->safe_psql('postgres', "ALTER DATABASE postgres RESET idem_tool.worker");
$node->reload;
swept('postgres', "NOT (key LIKE 'ref%1' OR key LIKE 'bad%7' OR key LIKE 'bad%5')",
	'refusing rows stop no other');
is( $node->safe_psql('postgres',
		"SELECT count(*) FROM idempotency_keys WHERE key LIKE 'ref%1'"),
	$refused, 'rows that are referred to stay');
ok( $node->safe_psql('postgres',
		"SELECT sweep_refused > 0 FROM idem_stats WHERE datname = 'postgres'") eq 't',
	'they are counted');
wait_rounds($node, 'postgres', 3);
my $rounds = rounds($node, 'postgres');
$offset = -s $node->logfile;
wait_rounds($node, 'postgres', 10);
my $lines = count_in_log($node, qr/could not be swept and were skipped/, $offset);
$rounds = rounds($node, 'postgres') - $rounds;
cmp_ok($lines, '>', 0, 'they are logged');
cmp_ok($lines, '<=', $rounds, 'in one line a round');
is(count_in_log($node, qr/ERROR/, $offset), 0, 'and not as errors');
$node->safe_psql('postgres', <<'SQL');
DROP TRIGGER refuse ON idempotency_keys;
DROP TRIGGER veto ON idempotency_keys;
DROP TABLE charge;
SQL
swept('postgres', 'true', 'once nobody objects they are gone');

# --- a trigger that hangs

$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN IF OLD.key LIKE 'hang%' THEN PERFORM pg_sleep(3600); END IF; RETURN OLD; END $$;
CREATE TRIGGER hang BEFORE DELETE ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION hang();
SQL
$node->safe_psql('postgres', forgotten('hang', 3) . forgotten('nohang', 50));
swept('postgres', "key NOT LIKE 'hang%'", 'a trigger that hangs stops no other row');
$started = time;
$node->safe_psql('postgres',
	"SET statement_timeout = '${PostgreSQL::Test::Utils::timeout_default}s'; CREATE DATABASE e; DROP DATABASE e");
$node->safe_psql('postgres', 'DROP TRIGGER hang ON idempotency_keys');
swept('postgres', 'true', 'and they are swept without it');

# --- rights: everything runs as the table's owner (16)

$node->safe_psql('postgres', <<'SQL');
CREATE ROLE weak;
ALTER TABLE idempotency_keys OWNER TO weak;
GRANT CREATE ON SCHEMA public TO weak;
CREATE TABLE seen (who name, was name, restricted boolean);
GRANT ALL ON seen TO weak;
SET ROLE weak;
-- operators that would be taken for the usual ones, if public came first
CREATE FUNCTION evil(timestamptz, interval) RETURNS timestamptz LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO public.seen VALUES ('evil', 'evil', false); RETURN $1; END $$;
CREATE OPERATOR public.+ (LEFTARG = timestamptz, RIGHTARG = interval, FUNCTION = evil);
CREATE FUNCTION record() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE restricted boolean := false;
BEGIN
	BEGIN
		CREATE TEMP TABLE pg_class (relname name);
	EXCEPTION WHEN insufficient_privilege THEN
		restricted := true;
	END;
	-- what we set must not survive us
	PERFORM set_config('search_path', 'public, pg_catalog', false);
	PERFORM set_config('default_transaction_read_only', 'on', false);
	INSERT INTO public.seen VALUES (current_user, session_user, restricted);
	RETURN NULL;
END $$;
CREATE TRIGGER record AFTER DELETE OR UPDATE ON idempotency_keys
	FOR EACH ROW EXECUTE FUNCTION record();
CREATE CONSTRAINT TRIGGER record_later AFTER DELETE OR UPDATE ON idempotency_keys
	DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION record();
RESET ROLE;
-- or it would be refused
ALTER FUNCTION record() OWNER TO postgres;
SQL
$node->safe_psql('postgres', forgotten('owner', 10) . lapsed('ownerlapsed', 10));
ok( $node->poll_query_until('postgres',
		"SELECT count(*) = 10 AND bool_and(status = 'expired') FROM idempotency_keys"),
	'a table of a mere user is swept');
is( $node->safe_psql('postgres', 'SELECT who, restricted, count(*) FROM seen GROUP BY 1, 2'),
	'weak|t|40', "its triggers run as the owner, deferred ones, too");

# --- roles that are gone (24)

$node->safe_psql('postgres', <<'SQL');
ALTER TABLE idempotency_keys OWNER TO postgres;
DROP TRIGGER record ON idempotency_keys;
DROP TRIGGER record_later ON idempotency_keys;
DELETE FROM idempotency_keys;
CREATE ROLE caller;
SELECT idem_grant('caller');
SET ROLE caller;
SELECT status FROM idem_reserve('by caller', '1 hour');
RESET ROLE;
DROP OWNED BY caller;
DROP ROLE caller;
UPDATE idempotency_keys SET expires_at = now() - interval '1 minute';
SQL
ok( $node->poll_query_until('postgres',
		"SELECT status = 'expired' AND owner = 'caller' FROM idempotency_keys"),
	'rows of a role that is gone are swept');
my $ownerless = "SELECT ownerless = %d FROM idem_stats WHERE datname = 'postgres'";
ok($node->poll_query_until('postgres', sprintf($ownerless, 1)),
	'and counted');
$node->safe_psql('postgres', 'CREATE ROLE caller');
ok($node->poll_query_until('postgres', sprintf($ownerless, 0)),
	'until there is such a role');
$node->safe_psql('postgres', 'DROP ROLE caller');

$psql->quit;
$node->stop('fast');
done_testing();
