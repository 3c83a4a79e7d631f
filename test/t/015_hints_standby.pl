# Hints on a standby: its sessions share what they saw, and the primary changes
# the table under them, as far as cutting its end off.  Then it is promoted.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1, extra => [ '--encoding=UTF8', '--no-locale' ]);
$primary->append_conf('postgresql.conf', <<'CONF');
shared_preload_libraries = 'idem_tool'
idem_tool.worker = off
autovacuum = off
CONF
$primary->start;
$primary->safe_psql('postgres', <<'SQL');
CREATE EXTENSION idem_tool;
SELECT count(idem_complete('k' || i, to_jsonb(i), token))
FROM generate_series(1, 500) i, idem_reserve('k' || i);
SQL
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;

# What the keys' outcomes are, and how often each, as a new session hears it
sub outcomes
{
	my ($want) = @_;
	return $standby->safe_psql('postgres', <<SQL);
SELECT r.status, r.result IS NOT DISTINCT FROM to_jsonb($want), count(*)
FROM generate_series(1, 500) i, idem_lookup('k' || i) r GROUP BY 1, 2 ORDER BY 1, 2
SQL
}

sub catch_up
{
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
}

catch_up();
is(outcomes('i'), 'done|t|500', "outcomes, $_ look") foreach 'first', 'second';

# each result in another row, several versions of it on the page
$primary->safe_psql('postgres', 'UPDATE idempotency_keys SET result = result')
  foreach 1 .. 3;
$primary->safe_psql('postgres',
	"UPDATE idempotency_keys SET result = to_jsonb(1000 + result::int)");
catch_up();
is(outcomes('1000 + i'), 'done|t|500', "rows that moved, $_ look")
  foreach 'first', 'second';

$primary->safe_psql('postgres', "DELETE FROM idempotency_keys WHERE key <> 'k1'");
$primary->safe_psql('postgres', 'VACUUM idempotency_keys');
catch_up();
is(outcomes('1000 + i'), 'done|t|1', 'the end of the table was cut off');

# the same keys again, in the old places
$primary->safe_psql('postgres', <<'SQL');
SELECT count(idem_complete('k' || 502 - i, to_jsonb(2000 + 502 - i), token))
FROM generate_series(2, 500) i, idem_reserve('k' || 502 - i);
SQL
catch_up();
is(outcomes('CASE i WHEN 1 THEN 1001 ELSE 2000 + i END'),
	'done|t|500', 'keys that began anew, in places of others');

$standby->promote;
is( $standby->safe_psql('postgres', <<'SQL'),
SELECT r.status, r.result = to_jsonb(CASE i WHEN 1 THEN 1001 ELSE 2000 + i END), count(*)
FROM generate_series(1, 501) i, idem_reserve('k' || i) r GROUP BY 1, 2 ORDER BY 1
SQL
	"done|t|500\nreserved||1", 'after the promotion');
is( $standby->safe_psql('postgres',
		"SELECT idem_complete('k501', '1', token) FROM idempotency_keys WHERE key = 'k501'"),
	't', 'where it reserves and completes');

$standby->stop('fast');
$primary->stop('fast');
done_testing();
