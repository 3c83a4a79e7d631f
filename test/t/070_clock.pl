# A server's clock is set while it runs: what leases and memory hear of it, and
# that the tests' own device moves the clock of the server and nothing else.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use Test::More;

my $node = new_node('clock', clock => 1);
my $session = session($node);

# How far the server's clock is ahead of the test's, in whole minutes
sub ahead
{
	return $session->query(sprintf(
			"SELECT round(extract(epoch FROM clock_timestamp() - to_timestamp(%s)) / 60)",
			time));
}

is(ahead(), 0, 'a server starts at the test\'s own time');
is(heard($session, 'a', "'10 min'"), 'reserved 1 f', 'reserved');
$session->query(
	"SELECT idem_complete(key, '1', token, '1 hour') FROM idempotency_keys");
is(heard($session, 'b', "'10 min'"), 'reserved 1 f', 'reserved, not settled');

$node->step_clock(-3600);
is(ahead(), -60, 'set back by an hour');
is(heard($session, 'a', "'10 min'"), 'done 1 f 1', 'a result is kept');
is(heard($session, 'b', "'10 min'"), 'in_progress 1 f', 'a lease goes on');

$node->step_clock(2 * 3600);
is(ahead(), 60, 'set forward by two hours, with the session that was there');
is(heard($session, 'a', "'10 min'"),
	'reserved 1 f', 'a result is past its memory');
is(heard($session, 'b', "'10 min'"), 'reserved 2 t', 'a lease has lapsed');

$node->restart;
$session = session($node);
is(ahead(), 60, 'a restart keeps the clock');
$node->stop;

done_testing();
