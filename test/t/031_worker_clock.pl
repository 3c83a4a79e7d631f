# The worker and a clock that is set: it goes by one that nobody sets.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('main', clock => 1);

$node->safe_psql('postgres', 'CREATE EXTENSION idem_tool');

# The rows are lapsed by the server's clock, whatever it says
sub is_swept
{
	my ($prefix, $what) = @_;

	$node->safe_psql('postgres', lapsed($prefix, 10));
	return ok(
		$node->poll_query_until('postgres',
			"SELECT count(*) = 10 AND bool_and(status = 'expired') FROM idempotency_keys WHERE key LIKE '$prefix%'"
		),
		$what);
}

is_swept('a', 'swept');

# While the launcher naps, which it does nearly all the time
$node->step_clock(-3600);
is_swept('b', 'swept although the clock was set back by an hour');

# While it waits for a worker, which is busy as long as we have its table
my $psql = $node->background_psql('postgres');
$psql->query_safe('BEGIN; LOCK TABLE idempotency_keys IN ACCESS EXCLUSIVE MODE');
$node->step_clock(-3600);
$psql->query_safe('COMMIT');
$psql->quit;
is_swept('c', 'and once more');

# Forward: what is due is not due over and over
my $offset = -s $node->logfile;
$node->step_clock(2 * 3600);
is_swept('d', 'swept after the clock was set forward');
is( $node->safe_psql('postgres', <<'END'),
SELECT revolution BETWEEN '0' AND '10 min', last_duration BETWEEN '0' AND '10 min',
	last_round BETWEEN clock_timestamp() - interval '10 min' AND clock_timestamp()
FROM idem_stats
END
	't|t|t', 'what idem_stats shows is no nonsense');

$node->stop;
done_testing();
