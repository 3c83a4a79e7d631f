# The worker and replication: nothing on a standby, everything once promoted.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = new_server('primary', allows_streaming => 1);
$primary->safe_psql('postgres', 'CREATE EXTENSION idem_tool');
wait_rounds($primary, 'postgres', 1);
$primary->backup('base');

my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;

# What the primary sweeps arrives
$primary->safe_psql('postgres', lapsed('lapsed', 100));
$primary->safe_psql('postgres', forgotten('old', 100));
$primary->poll_query_until('postgres',
	"SELECT count(*) = 100 AND bool_and(status = 'expired') FROM idempotency_keys");
$primary->safe_psql('postgres', "SELECT idem_reserve('late', '5 s')");
$primary->wait_for_catchup($standby, 'replay');
is( $standby->safe_psql('postgres',
		"SELECT count(*), count(*) FILTER (WHERE status = 'expired') FROM idempotency_keys"
	),
	'101|100', 'the standby has what the primary swept');

# A standby runs no worker, and whoever wants one gets an error at once
is( $standby->safe_psql('postgres',
		"SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'idem_tool%'"
	),
	'0', 'a standby has no launcher (21)');
for my $function ('idem_sweep', 'idem_start_worker')
{
	my ($ret, $stdout, $stderr) = $standby->psql('postgres',
		"SET statement_timeout = '30s';\n\\set VERBOSITY verbose\nSELECT $function()");
	like($stderr, qr/ERROR:  25006/, "$function is refused on a standby");
}
is($standby->safe_psql('postgres', 'SELECT idem_wake_worker()'),
	'f', 'where nobody can be woken');
is( $standby->safe_psql('postgres',
		"SELECT status FROM idem_reserve('lapsed1', takeover => '0')"),
	'expired', 'a standby answers');
is( $standby->safe_psql('postgres',
		"SELECT unknown FROM idem_stats WHERE datname = 'postgres'"),
	'1', 'and counts');

# Promotion
$standby->promote;
ok(wait_launcher($standby, 0), 'the launcher appears after promotion');
ok( $standby->poll_query_until('postgres',
		"SELECT status = 'expired' FROM idempotency_keys WHERE key = 'late'"),
	'and has the table swept');
is($standby->safe_psql('postgres', 'SELECT idem_wake_worker()'),
	't', 'and can be woken');
is(count_in_log($standby, qr/ERROR:  (?!.*cannot execute)/), 0, 'no errors (N5)');

$primary->stop('fast');
$standby->stop('fast');
done_testing();
