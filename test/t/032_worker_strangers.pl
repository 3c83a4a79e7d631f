# The worker and those who were granted more than they should: what they hang
# on our tables does not run with the rights of others, and is named.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('main');
my $offset;

$node->safe_psql('postgres', <<'END');
CREATE EXTENSION idem_tool;
CREATE ROLE app;
GRANT ALL ON ALL TABLES IN SCHEMA public TO app;
GRANT CREATE ON SCHEMA public TO app;
CREATE TABLE ran (who name);
GRANT INSERT ON ran TO PUBLIC;
SET ROLE app;
CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.ran VALUES (current_user);
	IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
		ALTER ROLE app SUPERUSER;
	END IF;
	RETURN COALESCE(NEW, OLD);
END $$;
CREATE FUNCTION trap_note() RETURNS void LANGUAGE sql AS $$
	INSERT INTO public.ran SELECT current_user
		WHERE current_user NOT IN ('app', session_user)
$$;
CREATE FUNCTION trap_value(text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN PERFORM public.trap_note(); RETURN coalesce($1, 'same'); END $$;
END

# The worker names what it refuses, and nobody's trap has sprung
sub is_refused
{
	my ($pattern, $what) = @_;

	ok($node->wait_for_log($pattern, $offset), "$what is refused");
	is($node->safe_psql('postgres', 'SELECT who FROM ran'), '', 'and did not run');
	is( $node->safe_psql('postgres',
			"SELECT rolsuper FROM pg_roles WHERE rolname = 'app'"),
		'f', 'nobody became a superuser');
	return;
}

sub is_swept
{
	my ($what) = @_;

	return ok(
		$node->poll_query_until('postgres',
			"SELECT bool_and(status = 'expired') IS NOT false FROM idempotency_keys"),
		$what);
}

sub as_app
{
	my ($sql) = @_;

	$offset = -s $node->logfile;
	return $node->safe_psql('postgres', "SET ROLE app; $sql");
}

# --- a trigger on the keys, of each kind, and its condition

as_app(<<'END');
CREATE TRIGGER trap BEFORE UPDATE OR DELETE ON idempotency_keys
	FOR EACH ROW EXECUTE FUNCTION trap();
END
$node->safe_psql('postgres', lapsed('a', 100));
is_refused(qr/LOG:  \d+ idempotency keys could not be swept and were skipped\n.*DETAIL:  First reason: trigger "trap" on table "idempotency_keys" cannot be trusted/,
	"a stranger's trigger");
ok( $node->poll_query_until('postgres',
		"SELECT sweep_refused >= 100 FROM idem_stats WHERE datname = 'postgres'"),
	'and counted');
my $rounds = rounds($node, 'postgres');
$offset = -s $node->logfile;
wait_rounds($node, 'postgres', 5);
my $lines = count_in_log($node, qr/could not be swept/, $offset);
$rounds = rounds($node, 'postgres') - $rounds;
cmp_ok($lines, '<=', $rounds, 'in one line a round');
is(count_in_log($node, qr/ERROR/, $offset), 0, 'and not as an error');
$node->safe_psql('postgres', 'DROP TRIGGER trap ON idempotency_keys');
is_swept('swept without it');

as_app(<<'END');
CREATE CONSTRAINT TRIGGER trap AFTER UPDATE ON idempotency_keys
	DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION trap();
END
$node->safe_psql('postgres', lapsed('b', 1));
is_refused(qr/First reason: trigger "trap" on table "idempotency_keys" cannot be trusted/,
	'a deferred one');
$node->safe_psql('postgres', 'DROP TRIGGER trap ON idempotency_keys');
is_swept('swept without it');

# --- on the audit

as_app(<<'END');
CREATE TRIGGER trap BEFORE DELETE ON idem_audit
	FOR EACH ROW EXECUTE FUNCTION trap();
END
$node->safe_psql('postgres', <<'END');
INSERT INTO idem_audit (at, role, session_role, action, scope, key, old_status,
	new_status)
VALUES (clock_timestamp() - interval '1 year', current_user, session_user,
	'resolve', '', 'old', 'expired', 'done');
END
is_refused(qr/audit could not be deleted: trigger "trap" on table "idem_audit" cannot be trusted/,
	'a trigger on the audit');
$node->safe_psql('postgres', lapsed('c', 1));
is_swept('the keys are swept');
$node->safe_psql('postgres', 'DROP TRIGGER trap ON idem_audit');

# --- in a table of a stranger's with a foreign key to ours: what fires there
# after the sweep deleted a row would run as the sweep

my $part = <<'END';
CREATE TABLE part (LIKE refers);
ALTER TABLE refers ATTACH PARTITION part DEFAULT;
END
my $trap = <<'END';
	DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION trap();
END
my $columns = 'id int PRIMARY KEY, scope text COLLATE "C", key text COLLATE "C"';
my $foreign = 'FOREIGN KEY (key, scope) REFERENCES idempotency_keys (key, scope)';
my %cascade = (
	'a deferred trigger after a cascade' => [
		"CREATE TABLE refers ($columns, $foreign ON DELETE CASCADE);
		CREATE CONSTRAINT TRIGGER trap AFTER DELETE ON refers $trap",
		'refers' ],
	'a trigger after a column was set to null' => [
		"CREATE TABLE refers ($columns, $foreign ON DELETE SET NULL);
		CREATE TRIGGER trap AFTER UPDATE ON refers
			FOR EACH STATEMENT EXECUTE FUNCTION trap()",
		'refers' ],
	'a trigger two cascades away' => [
		"CREATE TABLE refers ($columns, $foreign ON DELETE CASCADE);
		CREATE TABLE further (id int REFERENCES refers ON DELETE CASCADE);
		CREATE TRIGGER trap AFTER DELETE ON further
			FOR EACH ROW EXECUTE FUNCTION trap()",
		'further' ],
	'a deferred constraint that computes its entries again' => [
		"CREATE TABLE refers ($columns, $foreign ON DELETE SET NULL,
			CONSTRAINT trap EXCLUDE (trap_value(key) WITH =) DEFERRABLE INITIALLY DEFERRED)",
		'refers' ],
	'a deferred constraint that is partial' => [
		"CREATE TABLE refers ($columns, $foreign ON DELETE SET NULL,
			CONSTRAINT trap EXCLUDE (scope WITH =) WHERE (trap_value(key) = 'same')
			DEFERRABLE INITIALLY DEFERRED)",
		'refers' ],
	'a trigger on a partition' => [
		"CREATE TABLE refers (id int, scope text COLLATE \"C\", key text COLLATE \"C\",
			$foreign ON DELETE CASCADE) PARTITION BY LIST (id);
		$part
		CREATE CONSTRAINT TRIGGER trap AFTER DELETE ON part $trap",
		'part' ]);
$node->safe_psql('postgres', 'DELETE FROM idempotency_keys');
foreach my $what (sort keys %cascade)
{
	my ($sql, $table) = @{ $cascade{$what} };

	as_app($sql);
	$node->safe_psql('postgres', 'BEGIN; ' . forgotten('d', 1) . <<'END');
INSERT INTO refers SELECT 1, scope, key FROM idempotency_keys;
COMMIT;
END
	is_refused(qr/First reason: (?:trigger|constraint) "trap" on table "$table" cannot be trusted/, $what);
	$node->safe_psql('postgres', 'DROP TABLE refers CASCADE; DROP TABLE IF EXISTS further');
	is_swept('swept without it');
}

# What runs before it runs as the owner of that table, and does no harm
as_app("CREATE TABLE refers ($columns, $foreign ON DELETE CASCADE);
	CREATE TRIGGER trap BEFORE DELETE ON refers
		FOR EACH ROW EXECUTE FUNCTION trap();");
$node->safe_psql('postgres', 'BEGIN; ' . forgotten('e', 1) . <<'END');
INSERT INTO refers SELECT 1, scope, key FROM idempotency_keys;
COMMIT;
END
is_swept('a trigger before a cascade is no obstacle');
is($node->safe_psql('postgres', 'SELECT who FROM ran'),
	'app', 'and runs as its own owner');
$node->safe_psql('postgres', 'DROP TABLE refers; TRUNCATE ran');

# An administrator's own are as welcome there as on our tables
$node->safe_psql('postgres', <<"END");
CREATE TABLE refers ($columns, $foreign ON DELETE CASCADE);
CREATE FUNCTION trusted() RETURNS trigger LANGUAGE plpgsql AS \$\$
BEGIN INSERT INTO public.ran VALUES (current_user); RETURN NULL; END \$\$;
CREATE CONSTRAINT TRIGGER trusted AFTER DELETE ON refers
	DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION trusted();
END
$node->safe_psql('postgres', 'BEGIN; ' . forgotten('f', 1) . <<'END');
INSERT INTO refers SELECT 1, scope, key FROM idempotency_keys;
COMMIT;
END
is_swept("the administrator's trigger is no obstacle");

# since 18 PostgreSQL runs an AFTER trigger as whoever caused it, which is the
# owner of the referring table
is($node->safe_psql('postgres', 'SELECT who FROM ran'),
	$node->safe_psql('postgres', $node->pg_version < 18 ?
		"SELECT 'pg_database_owner'" : 'SELECT current_user'),
	'and runs as the one owner or the other');
$node->safe_psql('postgres', 'DROP TABLE refers; TRUNCATE ran');

# What was found to be trusted stays so: the table is locked before its rows go
$node->safe_psql('postgres', <<"END");
CREATE TABLE refers ($columns, $foreign ON DELETE CASCADE);
CREATE TABLE locked (mode text);
CREATE FUNCTION note_locks() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS \$\$
BEGIN
	INSERT INTO public.locked SELECT mode FROM pg_locks
		WHERE pid = pg_backend_pid() AND relation = 'public.refers'::regclass;
	RETURN OLD;
END \$\$;
CREATE TRIGGER note_locks BEFORE DELETE ON idempotency_keys
	FOR EACH ROW EXECUTE FUNCTION note_locks();
END
$node->safe_psql('postgres', forgotten('l', 1));
is_swept('swept with a table that refers to ours');
is($node->safe_psql('postgres', 'SELECT DISTINCT mode FROM locked'),
	'RowExclusiveLock', 'which nobody could hang anything on meanwhile');
$node->safe_psql('postgres',
	'DROP TRIGGER note_locks ON idempotency_keys; DROP TABLE refers, locked');

# --- row security that is forced upon the owner

$node->safe_psql('postgres', <<'END');
ALTER TABLE idempotency_keys FORCE ROW LEVEL SECURITY;
ALTER TABLE idem_audit FORCE ROW LEVEL SECURITY;
END
$node->safe_psql('postgres', lapsed('g', 1) . forgotten('h', 1));
is_swept('row security that is forced is no obstacle');
ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM idem_audit'),
	'nor for the audit');

$offset = -s $node->logfile;
$node->safe_psql('postgres', 'CREATE ROLE other; ALTER TABLE idempotency_keys OWNER TO other');
$node->safe_psql('postgres', lapsed('i', 1));
ok( $node->wait_for_log(
		qr/First reason: key "i1" in scope "": row security, a trigger or a rule on table "idempotency_keys" suppressed the write/,
		$offset),
	'an owner who does not see the rows is told');
$node->safe_psql('postgres', 'ALTER TABLE idempotency_keys NO FORCE ROW LEVEL SECURITY');
is_swept('and sweeps when he does');

$node->stop;
done_testing();
