# What the TAP tests have in common.

package IdemTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IdemTest::Clock;
use IdemTest::Session;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils qw(slurp_file);
use Time::HiRes qw(time usleep);

our @EXPORT = qw(new_node session crash kill_and_wait
  eventually heard median milliseconds);

# A running server with the extension; %param is init()'s, and conf: lines for
# postgresql.conf, and clock: true for one whose clock can be set, see
# IdemTest::Clock.  Nothing runs there that a test did not start.
sub new_node
{
	my ($name, %param) = @_;
	my $conf = delete $param{conf} // '';
	my $class =
	  delete $param{clock} ? 'IdemTest::Clock' : 'PostgreSQL::Test::Cluster';
	my $node = $class->new($name);

	$node->init(%param);
	$node->append_conf('postgresql.conf', <<"END");
log_statement = none
autovacuum = off
checkpoint_timeout = 1h
shared_buffers = 16MB
max_connections = 100
$conf
END
	$node->start;
	session($node)->query('CREATE EXTENSION idem_tool');
	return $node;
}

sub session
{
	my ($node, %option) = @_;

	return IdemTest::Session->new($node, %option);
}

# Parent and state of a process; nothing if it is gone
sub _process
{
	my ($pid) = @_;

	open(my $file, '<', "/proc/$pid/stat") or return;
	my $stat = <$file> // return;
	my ($state, $parent) = $stat =~ /^\d+ \(.*\) (\S) (\d+)/s or return;
	return ($parent, $state);
}

# Kill at once, and wait until they are gone: a server that starts while
# another process still has the old one's shared memory refuses to
sub kill_and_wait
{
	my (@pids) = @_;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;

	kill 'KILL', @pids;
	foreach my $pid (@pids)
	{
		for (;;)
		{
			my ($parent, $state) = _process($pid);

			last if !defined $state || $state eq 'Z';
			die "process $pid does not die" if time > $end;
			usleep(1000);
		}
	}
	return;
}

# kill -9 the whole server: the postmaster first, that it cannot start others
sub crash
{
	my ($node) = @_;
	my ($postmaster) =
	  split(/\n/, slurp_file($node->data_dir . '/postmaster.pid'));
	my @children = grep { ((_process($_))[0] // 0) == $postmaster }
	  map { m{(\d+)$} } glob('/proc/[0-9]*');

	$node->kill9;
	kill_and_wait($postmaster, @children);

	# until init has buried it, the next postmaster takes it for alive
	unlink $node->data_dir . '/postmaster.pid',
	  $node->host . '/.s.PGSQL.' . $node->port . '.lock';
	return;
}

# Ask again until the answer is "t"; false if it never is
sub eventually
{
	my ($session, $sql) = @_;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;

	while ($session->query($sql) ne 't')
	{
		return 0 if time > $end;
		usleep(5000);
	}
	return 1;
}

# What a caller of idem_reserve is told, in short: status, attempt, maybe_ran,
# result.  $arguments are further ones in SQL.
sub heard
{
	my ($session, $key, $arguments) = @_;

	$arguments = defined $arguments ? ", $arguments" : '';
	return $session->try(<<"END");
SELECT concat_ws(' ', status, attempt, maybe_ran, result)
FROM idem_reserve('$key'$arguments)
END
}

sub median
{
	my (@values) = sort { $a <=> $b } @_;

	return $values[ $#values / 2 ];
}

# Seconds, for people
sub milliseconds
{
	my (@seconds) = @_;

	return join(' ', map { sprintf('%.1f', $_ * 1000) } @seconds) . ' ms';
}

1;
