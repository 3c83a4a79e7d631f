# Behind PgBouncer in transaction mode: 32 clients share two server
# connections, so that whatever belongs to a session belongs to everybody.
#
# 5000 keys, each used by two callers at about the same time, every other one
# by a third a little later.  Whoever is refused calls release and fail in its
# clean-up, without a token and with a variable that was never set.  No holder
# must lose its reservation by that, and no client must find itself in
# another's scope.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my ($program) = grep { -x } map { "$_/pgbouncer" }
  split(/:/, $ENV{PATH}), '/usr/sbin', '/usr/local/sbin';
plan skip_all => 'pgbouncer is not installed' if !$program;

my $clients = 32;
my $keys = 5000;

# 25000 errors that are wanted
my $node = new_node('pooler', conf => 'log_min_messages = fatal');
my $session = session($node);
my $dir = PostgreSQL::Test::Utils::tempdir_short();
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $pid;

sub start_pooler
{
	my $user = getpwuid($>);

	append_to_file("$dir/users", qq{"$user" ""\n});
	append_to_file("$dir/pgbouncer.ini", <<"END");
[databases]
postgres = host=@{[$node->host]} port=@{[$node->port]} dbname=postgres
[pgbouncer]
listen_port = $port
unix_socket_dir = $dir
auth_type = trust
auth_file = $dir/users
pool_mode = transaction
default_pool_size = 2
max_client_conn = 100
logfile = $dir/log
log_connections = 0
log_disconnections = 0
END

	$pid = fork // die "could not fork: $!";
	exec($program, '-q', "$dir/pgbouncer.ini") if $pid == 0;

	foreach (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return if -S "$dir/.s.PGSQL.$port";
		usleep(100_000);
	}
	die 'pgbouncer does not start: ' . slurp_file("$dir/log");
}

sub stop_pooler
{
	return if !$pid;
	kill 'TERM', $pid;
	waitpid($pid, 0);
	undef $pid;
	return;
}

END
{
	my $status = $?;

	stop_pooler();
	$? = $status;
}

# A key's scope, and how it comes to the server: not at all, as an argument,
# or by SET LOCAL
sub scope_of
{
	my ($key) = @_;

	return 'local ' . $key % 3 if $key % 8 == 0;
	return $key % 2 ? '' : 'tenant ' . $key % 7;
}

# Call a function in the key's scope.  Returns its row, or its SQLSTATE.
sub call
{
	my ($session, $key, $call) = @_;
	my $scope = scope_of($key);

	return $session->try("SELECT * FROM $call)") if $scope eq '';
	return $session->try("SELECT * FROM $call, scope => '$scope')")
	  if $scope =~ /^tenant/;

	$session->query('BEGIN');
	$session->query("SET LOCAL idem_tool.scope = '$scope'");
	my $outcome = $session->try("SELECT * FROM $call)");
	$session->query('COMMIT');
	return $outcome;
}

# One caller: reserve, and then run the effect or clean up.  Each call is a
# transaction of its own, on whatever server connection.  Counts what it
# hears.
sub caller_of
{
	my ($session, $key, $number, $count) = @_;
	my ($status, $result, $token) =
	  split(/\|/, call($session, $key, "idem_reserve('key $key', '1 hour'"));

	$count->{"reserve: $status"}++;
	if ($status eq 'reserved')
	{
		my $scope = scope_of($key);

		$session->query(
			"INSERT INTO effects VALUES ('key $key', '$scope', $number)");
		my $outcome =
		  call($session, $key, "idem_complete('key $key', '$number', $token");

		$count->{"complete: $outcome"}++;
		return;
	}

	if ($status eq 'done')
	{
		my $effect = $session->query(
			"SELECT client FROM effects WHERE key = 'key $key'");

		$count->{'replay: ' . ($result eq $effect ? 'right' : 'wrong')}++;
	}

	# what a careless finally block does
	foreach my $call ("idem_release('key $key'",
		"idem_fail('key $key', '\"refused\"'")
	{
		my ($name) = $call =~ /idem_(\w+)/;

		$count->{"$name: " . call($session, $key, $call)}++;
		$count->{"$name with null: "
			  . call($session, $key, "$call, token => NULL") }++;
	}
	return;
}

# One client: take keys from the queue until it is empty
sub client
{
	my ($number, $queue) = @_;
	my $session = session($node, host => $dir, port => $port);
	my %count;

	$count{'backend ' . $session->query('SELECT pg_backend_pid()')}++;
	while (sysread($queue, my $key, 4) == 4)
	{
		caller_of($session, unpack('N', $key), $number, \%count);
	}
	append_to_file("$dir/counts",
		join('', map { "$_=$count{$_}\n" } sort keys %count));
	return;
}

# Start a process for each client; all read from one pipe
sub start_clients
{
	my ($read, $write) = @_;
	my @pids;

	foreach my $number (1 .. $clients)
	{
		my $child = fork // die "could not fork: $!";

		if ($child == 0)
		{
			close $write;
			my $well = eval { client($number, $read); 1 };

			warn $@ if !$well;
			# not exit: the END blocks stop the servers
			POSIX::_exit($well ? 0 : 1);
		}
		push @pids, $child;
	}
	return @pids;
}

# Keys in order, once for each caller
sub fill_queue
{
	my ($queue) = @_;

	local $SIG{PIPE} = 'IGNORE';
	foreach my $key (1 .. $keys)
	{
		syswrite($queue, pack('NN', $key, $key));
		syswrite($queue, pack('N', $key - 100)) if $key > 100 && $key % 2;
	}
	close $queue;
	return;
}

$session->query(
	'CREATE TABLE effects (key text, scope text, client integer)');
$session->query('CREATE INDEX ON effects (key)');
start_pooler();
pipe(my $read, my $write) or die "no pipe: $!";
my @pids = start_clients($read, $write);
close $read;
fill_queue($write);
my @failed = grep { waitpid($_, 0) != $_ || $? != 0 } @pids;
is(@failed, 0, 'all clients ended well');
stop_pooler();

# What they heard: outcomes by function
my %heard;
foreach (split(/\n/, slurp_file("$dir/counts")))
{
	my ($name, $outcome, $count) = /^(.*?):? (\S+)=(\d+)$/;

	$heard{$name}{$outcome} += $count;
}
foreach my $name (sort keys %heard)
{
	my $counts = $heard{$name};

	note("$name: ",
		join(', ', map { "$_ $counts->{$_}" } sort keys %$counts));
}

is(keys %{ $heard{backend} }, 2, 'two server connections for all');
is($heard{reserve}{reserved}, $keys, 'one winner a key');
is_deeply([ sort keys %{ $heard{reserve} } ],
	[ 'done', 'in_progress', 'reserved' ],
	'the others hear that it is in progress or done');
is_deeply([ keys %{ $heard{replay} } ], ['right'], '... with the one result');
is_deeply($heard{complete}, { t => $keys }, 'every winner can complete');
is_deeply([ sort keys %{ $heard{release} } ],
	[ 'IK003', 'f' ], 'release without a token frees nobody');
is_deeply([ keys %{ $heard{fail} } ],
	['IK003'], 'fail without a token settles nothing');
is_deeply([ keys %{ $heard{"$_ with null"} } ],
	['22004'], "$_ with a token that was never set is refused")
  foreach 'release', 'fail';

# What is there: each key in its own scope, with the winner's result
my ($rows, $right) = split(/\|/, $session->query(<<'END'));
SELECT count(*), count(*) FILTER (WHERE status = 'done' AND attempt = 1
	AND NOT maybe_ran AND result = to_jsonb(client))
FROM idempotency_keys FULL JOIN effects USING (scope, key)
END
is($rows, $keys, 'one key and one effect each');
is($right, $keys, 'results are the winners\'');
my %scope = map { /^key (\d+)\|(.*)$/ }
  split(/\n/, $session->query('SELECT key, scope FROM idempotency_keys'));
is((grep { $scope{$_} ne scope_of($_) } keys %scope),
	0, 'no key in another client\'s scope');

$node->stop;
done_testing();
