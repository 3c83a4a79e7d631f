# Rows survive pg_upgrade with the library preloaded on both sides, and
# dump and restore; the worker is there afterwards.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $old = new_server('old');
$old->safe_psql('postgres', 'CREATE EXTENSION idem_tool');
$old->safe_psql('postgres', <<'SQL');
CREATE ROLE app;
GRANT app TO CURRENT_USER;
SELECT idem_complete('done', '{"n": 1}', token, '1 day') FROM idem_reserve('done', request => '{"a": 1}');
SELECT idem_fail('failed', '"no"', token, '1 day') FROM idem_reserve('failed');
SELECT status FROM idem_reserve('running', '1 hour', holder => 'me');
SELECT idem_release('released', token) FROM idem_reserve('released');
SELECT idem_abandon('unknown', token) FROM idem_reserve('unknown');
SELECT status FROM idem_reserve('lapsed', '1 ms');
UPDATE idempotency_keys SET owner = 'app' WHERE key = 'done';
SQL
$old->poll_query_until('postgres',
	"SELECT status = 'expired' FROM idempotency_keys WHERE key = 'lapsed'");

# What callers would hear; nothing is changed by asking
my $ask = <<'SQL';
SELECT k, a.status, a.result, a.attempt, a.maybe_ran, a.created_at, a.expires_at
FROM unnest(ARRAY['done', 'failed', 'running', 'unknown', 'lapsed']) k,
	idem_reserve(k, takeover => '0') a;
SELECT key, status, attempt, token, owner, holder FROM idempotency_keys ORDER BY key;
SELECT last_value FROM idempotency_keys_token_seq;
SQL
my $answers = $old->safe_psql('postgres', $ask);

# --- dump and restore (23, N7)

my $dump = PostgreSQL::Test::Utils::tempdir . '/dump.sql';
$old->command_ok([ 'pg_dump', '-h', $old->host, '-p', $old->port, '-f', $dump, 'postgres' ],
	'pg_dump');
$old->safe_psql('postgres', 'CREATE DATABASE restored');
$old->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-h', $old->host,
		'-p', $old->port, '-f', $dump, 'restored' ], 'and restore');
is($old->safe_psql('restored', $ask), $answers, 'answers are the same after a restore');
is( $old->safe_psql('restored', "SELECT token > (SELECT max(token) FROM idempotency_keys WHERE key <> 'new') FROM idem_reserve('new')"),
	't', 'tokens go on rising');
$old->safe_psql('restored', lapsed('lapsedx', 1));
ok( $old->poll_query_until('restored',
		"SELECT status = 'expired' FROM idempotency_keys WHERE key = 'lapsedx1'"),
	'a restored database is swept');
$old->stop;

# --- pg_upgrade (22)

my $new = new_server('new', no_start => 1);
chdir PostgreSQL::Test::Utils::tempdir;
command_ok(
	[   'pg_upgrade', '--no-sync',
		'-d', $old->data_dir, '-D', $new->data_dir,
		'-b', $old->config_data('--bindir'), '-B', $new->config_data('--bindir'),
		'-s', $new->host, '-p', $old->port, '-P', $new->port ],
	'pg_upgrade with the library preloaded on both sides');
$new->start;
is($new->safe_psql('postgres', $ask), $answers, 'answers are the same after pg_upgrade');
$new->safe_psql('postgres', lapsed('lapsedx', 1));
ok( $new->poll_query_until('postgres',
		"SELECT status = 'expired' FROM idempotency_keys WHERE key = 'lapsedx1'"),
	'the new server sweeps');
$new->stop('fast');
done_testing();
