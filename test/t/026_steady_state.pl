# A constant rate of new keys with a memory of a second: after twenty turnovers
# the table and its index are as large as after five, and nothing is left over.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use IPC::Run;
use List::Util qw(max);
use Test::More;

my $turnovers = 24;
my $node = new_server('main', conf => <<'CONF');
idem_tool.result_ttl = 1s
idem_tool.sweep_pages = 100
autovacuum_naptime = 1s
autovacuum_vacuum_cost_delay = 0
synchronous_commit = off
CONF

$node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION idem_tool;
ALTER TABLE idempotency_keys SET (autovacuum_vacuum_threshold = 100, autovacuum_vacuum_scale_factor = 0.1);
SQL

my $dir = PostgreSQL::Test::Utils::tempdir;
append_to_file("$dir/pair.sql", <<'SQL');
\set k random(1, 9000000000000000)
SELECT token FROM idem_reserve('charge:' || :k, '1 s') \gset
SELECT idem_complete('charge:' || :k, '{"charge": "ch_123", "ok": true}', :token);
SQL

# a rate that a slow machine keeps up with
my $out = '';
my $callers = IPC::Run::start(
	[   'pgbench', '-n', '-h', $node->host, '-p', $node->port,
		'-c', 4, '-R', 250, '-T', $turnovers + 1, '-M', 'prepared',
		'-f', "$dir/pair.sql", 'postgres' ],
	'>&', \$out);

my (@heap, @index, $oldest, $revolution);
$oldest = $revolution = 0;
for my $second (1 .. $turnovers)
{
	sleep 1;
	my ($heap, $index, $late, $round) = split /\|/,
	  $node->safe_psql('postgres', <<'SQL');
SELECT pg_relation_size('idempotency_keys'), pg_relation_size('idempotency_keys_pkey'),
	extract(epoch FROM (SELECT clock_timestamp() - min(expires_at) FROM idempotency_keys)),
	extract(epoch FROM (SELECT revolution + last_duration FROM idem_stats))
SQL
	push @heap, $heap;
	push @index, $index;
	$oldest = max($oldest, $late);
	$revolution = max($revolution, $round // 0);
}
ok($callers->finish, 'the callers came through') or diag($out);
note("heap @heap");
note("index @index");

# the median of a few seconds, for autovacuum comes and goes
sub median
{
	my @sorted = sort { $a <=> $b } @_;
	return $sorted[ $#sorted / 2 ];
}
my $early = median(@heap[3 .. 9]);
my $late = median(@heap[-7 .. -1]);
cmp_ok($late, '<', 1.2 * $early, "the table stays as it is: $early, $late bytes");
$early = median(@index[3 .. 9]);
$late = median(@index[-7 .. -1]);
cmp_ok($late, '<', 1.2 * $early, "and its index: $early, $late bytes");

# two revolutions: one may be under way when the row becomes due
cmp_ok($oldest, '<', 2 * $revolution + 5,
	sprintf('no row is older than its memory and a revolution: %.2f s, %.2f s', $oldest, $revolution));
ok( $node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM idempotency_keys'),
	'nothing is left over');

my ($reserved, $deleted) = split /\|/, $node->safe_psql('postgres',
	'SELECT reserved, swept_deleted FROM idem_stats');
is($deleted, $reserved, 'every row was deleted by the sweep');

$node->stop('fast');
done_testing();
