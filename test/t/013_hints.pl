# Where a row was seen last is shared by all sessions of a preloaded server.
# A hint spares the index, and is never believed where it is wrong.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('hints');
$node->init(extra => [ '--encoding=UTF8', '--no-locale' ]);
$node->append_conf('postgresql.conf', <<'CONF');
shared_preload_libraries = 'idem_tool'
idem_tool.worker = off
autovacuum = off
CONF
$node->start;
$node->safe_psql('postgres', 'CREATE DATABASE other');

sub settle
{
	my ($database) = @_;
	$node->safe_psql($database, <<SQL);
CREATE EXTENSION idem_tool;
SELECT count(idem_complete('k' || i, jsonb_build_object('$database', i), token))
FROM generate_series(1, 500) i, idem_reserve('k' || i);
SQL
}

# Every key's outcome, as a session that is new to them hears it
sub wrong_replays
{
	my ($database) = @_;
	return $node->safe_psql($database, <<SQL);
SELECT count(*) FROM generate_series(1, 500) i, idem_reserve('k' || i) r
WHERE (r.status, r.result) IS DISTINCT FROM ('done', jsonb_build_object('$database', i))
SQL
}

sub index_scans
{
	return $node->safe_psql('postgres', <<'SQL');
SELECT pg_stat_force_next_flush();
SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'idempotency_keys_pkey'
SQL
}

settle('postgres');
my $before = index_scans();
is(wrong_replays('postgres'), '0', 'another session replays');
is(index_scans(), $before, 'without a look into the index');

# --- the same keys elsewhere

settle('other');
is(wrong_replays('other'), '0', 'another database has its own');
is(wrong_replays('postgres'), '0', 'and the first one still has its own');

# --- rows that are somewhere else now, or nowhere

$node->safe_psql('postgres', 'VACUUM FULL idempotency_keys');
is(wrong_replays('postgres'), '0', 'after VACUUM FULL');
$node->safe_psql('postgres', <<'SQL');
UPDATE idempotency_keys SET key = 'k' || (501 - substr(key, 2)::int) || '!';
UPDATE idempotency_keys SET key = rtrim(key, '!'),
	result = jsonb_build_object('postgres', substr(rtrim(key, '!'), 2)::int);
VACUUM idempotency_keys;
SQL
is(wrong_replays('postgres'), '0', 'after all keys changed places');
$node->safe_psql('postgres',
	"DELETE FROM idempotency_keys WHERE key <> 'k1'");
$node->safe_psql('postgres', 'VACUUM idempotency_keys');
is( $node->safe_psql('postgres', <<'SQL'),
SELECT r.status, count(*) FROM generate_series(1, 500) i, idem_lookup('k' || i) r GROUP BY 1
SQL
	'done|1', 'after the end of the table was cut off');
is( $node->safe_psql('postgres', <<'SQL'),
BEGIN;
SELECT count(*) FROM generate_series(2, 500) i, idem_reserve('k' || i) r WHERE r.status = 'reserved';
ROLLBACK;
SQL
	'499', 'keys that are gone are free');
is( $node->safe_psql('postgres', <<'SQL'),
SELECT count(*) FROM generate_series(2, 500) i, idem_reserve('k' || i) r WHERE r.status = 'reserved'
SQL
	'499', 'also after a reservation that was rolled back');
$node->safe_psql('postgres', 'TRUNCATE idempotency_keys');
is( $node->safe_psql('postgres',
		"SELECT count(*) FROM generate_series(1, 500) i, idem_lookup('k' || i)"),
	'0', 'after TRUNCATE');
$node->safe_psql('postgres', 'DROP EXTENSION idem_tool');
settle('postgres');
is(wrong_replays('postgres'), '0', 'after the extension was made anew');

# --- what is not committed is not seen by its hint either

my $rival = $node->background_psql('postgres');
$rival->query_safe("BEGIN; SELECT FROM idem_reserve('rival')");
is( $node->safe_psql('postgres', "SELECT status, attempt FROM idem_reserve('rival')"),
	'in_progress|', "a rival's row");
$rival->query_safe("ROLLBACK; BEGIN; DELETE FROM idempotency_keys WHERE key = 'k7'");
is( $node->safe_psql('postgres', "SELECT status FROM idem_reserve('k7')"),
	'done', 'one that a rival is deleting');
$rival->query_safe('COMMIT');
is( $node->safe_psql('postgres', "SELECT status FROM idem_reserve('k7')"),
	'reserved', 'and one that is deleted');
$rival->quit;

# --- old versions make room for new ones, without VACUUM

$node->safe_psql('postgres', 'TRUNCATE idempotency_keys');
is( $node->safe_psql('postgres', <<'SQL'),
SELECT token FROM idem_reserve('beating') \gset
SELECT set_config('test.token', :'token', false) \g /dev/null
DO $$
BEGIN
	FOR i IN 1 .. 500 LOOP
		PERFORM idem_extend('beating', NULL, current_setting('test.token')::bigint);
		COMMIT;
	END LOOP;
END $$;
SELECT pg_relation_size('idempotency_keys') / current_setting('block_size')::int
SQL
	'1', 'a lease that is extended 500 times keeps to its page');

$node->safe_psql('postgres', 'TRUNCATE idempotency_keys');
is( $node->safe_psql('postgres', <<'SQL'),
SET idem_tool.session_tokens = on;
SELECT idem_reserve('falling'), idem_abandon('falling') \g /dev/null
DO $$
BEGIN
	FOR i IN 1 .. 500 LOOP
		PERFORM idem_reserve('falling', takeover => '1 year');
		COMMIT;
		PERFORM idem_abandon('falling');
		COMMIT;
	END LOOP;
END $$;
SELECT pg_relation_size('idempotency_keys') / current_setting('block_size')::int,
	attempt FROM idem_lookup('falling')
SQL
	'1|501', 'and so does a key that is taken over 500 times');

# a result needs the room that dead versions have, long before it is scarce for
# another version without a result
$node->safe_psql('postgres', 'TRUNCATE idempotency_keys');
is( $node->safe_psql('postgres', <<'SQL'),
SET idem_tool.session_tokens = on;
SELECT set_config('idem_tool.scope', repeat('s', 200), false) \g /dev/null
SELECT count(idem_reserve('large' || i, holder => repeat('h', 255)))
FROM generate_series(1, 7) AS i \g /dev/null
SELECT pg_stat_force_next_flush() \g /dev/null
SELECT n_tup_upd AS upd, n_tup_hot_upd AS hot FROM pg_stat_user_tables
WHERE relname = 'idempotency_keys' \gset
SELECT to_jsonb(string_agg(md5(i::text), '')) AS result FROM generate_series(1, 30) AS i \gset
SELECT idem_complete('large1', :'result') \g /dev/null
SELECT idem_complete('large2', :'result') \g /dev/null
SELECT idem_complete('large3', :'result') \g /dev/null
SELECT pg_stat_force_next_flush() \g /dev/null
SELECT n_tup_upd - :upd, n_tup_hot_upd - :hot FROM pg_stat_user_tables
WHERE relname = 'idempotency_keys'
SQL
	'3|3', 'large results stay on the pages of their keys');

# --- a crash leaves none

$node->stop('immediate');
$node->start;
is(wrong_replays('other'), '0', 'after a crash');

$node->stop('fast');
done_testing();
