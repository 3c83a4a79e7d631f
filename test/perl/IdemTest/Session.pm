# A connection to the server over a socket, without a process of its own.
#
# The tests hold dozens of sessions at once, stop them in the middle of a
# transaction, kill their servers and measure how soon they hear of something.
# psql in the background does that slowly and hides SQLSTATEs in its output;
# the simple query protocol, with trust authentication, is a page of Perl.

package IdemTest::Session;

use strict;
use warnings FATAL => 'all';

use Carp;
use IO::Select;
use IO::Socket::INET;
use IO::Socket::UNIX;
use PostgreSQL::Test::Utils ();
use Time::HiRes qw(time);

# Connect to $node, a PostgreSQL::Test::Cluster; or to where %option says:
# host (a directory is that of a Unix socket), port, dbname, user.
sub new
{
	my ($class, $node, %option) = @_;
	my $host = $option{host} // $node->host;
	my $port = $option{port} // $node->port;
	my $self = bless {
		host => $host,
		port => $port,
		buffer => '',
		notices => [],
		parameter => {}
	}, $class;
	my $startup = _startup(
		user => $option{user} // scalar getpwuid($>),
		database => $option{dbname} // 'postgres');

	$self->{socket} = _open($host, $port)
	  or croak "could not connect to $host, port $port: $!";
	$self->_begin;
	$self->_write(pack('N', length($startup) + 4) . $startup);
	my $answer = $self->answer;
	croak "could not connect: $answer->{message}" if $answer->{sqlstate};
	return $self;
}

sub _startup
{
	my (%parameter) = @_;

	return pack('N', 196608)
	  . join('', map { "$_\0$parameter{$_}\0" } sort keys %parameter) . "\0";
}

sub _open
{
	my ($host, $port) = @_;

	return $host =~ m{^/}
	  ? IO::Socket::UNIX->new(Peer => "$host/.s.PGSQL.$port")
	  : IO::Socket::INET->new(PeerAddr => $host, PeerPort => $port);
}

sub _write
{
	my ($self, $bytes) = @_;

	# a server that is gone shows when we read
	local $SIG{PIPE} = 'IGNORE';
	syswrite($self->{socket}, $bytes);
	return;
}

# A new answer, to be filled by what arrives
sub _begin
{
	my ($self) = @_;

	$self->{answer} = { rows => [], sqlstate => '', message => '' };
	$self->{busy} = 1;
	return;
}

# Send SQL without waiting for the answer
sub send
{
	my ($self, $sql) = @_;

	croak 'the last answer was not fetched' if $self->{busy};
	$self->_begin;
	$self->_write('Q' . pack('N', length($sql) + 5) . "$sql\0");
	return;
}

# Wait for the answer, a hash:
#	rows		of all statements, each an array; NULL is undef
#	sqlstate	'' if there was no error; message, detail and hint beside it
#	closed		the connection is gone
#	time		when the answer had come
sub answer
{
	my ($self) = @_;
	my $timeout = $PostgreSQL::Test::Utils::timeout_default;

	IdemTest::Session->wait_for([$self], $timeout)
	  or croak 'no answer in time';
	return $self->{answer};
}

# Has the answer come?
sub answered
{
	my ($self) = @_;

	return IdemTest::Session->wait_for([$self], 0) ? 1 : 0;
}

# Wait until one of the sessions has its answer, for $timeout seconds at most.
# Returns those that have.
sub wait_for
{
	my ($class, $sessions, $timeout) = @_;
	my $end = time + $timeout;

	for (;;)
	{
		my @ready = grep { !$_->{busy} } @$sessions;
		return @ready if @ready;

		my %session = map { fileno($_->{socket}) => $_ }
		  @$sessions;
		my $select = IO::Select->new(map { $_->{socket} } values %session);
		my $left = $end - time;
		my @readable = $select->can_read($left > 0 ? $left : 0);

		$session{ fileno $_ }->_read foreach @readable;
		return if $left <= 0 && !@readable;
	}
}

# Take in what has arrived
sub _read
{
	my ($self) = @_;

	if (!sysread($self->{socket}, $self->{buffer}, 65536,
			length $self->{buffer}))
	{
		$self->{answer}{closed} = 1;
		return $self->_finish;
	}
	while (length $self->{buffer} >= 5)
	{
		my ($type, $length) = unpack('aN', $self->{buffer});

		last if length $self->{buffer} <= $length;
		my $body = substr($self->{buffer}, 5, $length - 4);
		substr($self->{buffer}, 0, $length + 1) = '';
		$self->_message($type, $body);
	}
	return;
}

sub _finish
{
	my ($self) = @_;

	$self->{answer}{time} = time;
	$self->{busy} = 0;
	return;
}

# One message of the server
sub _message
{
	my ($self, $type, $body) = @_;
	my $answer = $self->{answer};

	if ($type eq 'D')
	{
		push @{ $answer->{rows} }, [ _row($body) ];
	}
	elsif ($type eq 'E')
	{
		my %field = map { unpack('aa*', $_) } split(/\0/, $body);

		@$answer{qw(sqlstate message detail hint)} = @field{qw(C M D H)};
	}
	elsif ($type eq 'S')
	{
		my ($name, $value) = split(/\0/, $body);

		$self->{parameter}{$name} = $value;
	}
	elsif ($type eq 'K')
	{
		@$self{qw(pid secret)} = unpack('NN', $body);
	}
	elsif ($type eq 'R')
	{
		croak 'only trust authentication is supported'
		  if unpack('N', $body) != 0;
	}
	elsif ($type eq 'Z')
	{
		$self->_finish;
	}
	return;
}

sub _row
{
	my ($body) = @_;
	my $count = unpack('n', $body);
	my $at = 2;
	my @row;

	foreach (1 .. $count)
	{
		my $length = unpack('l>', substr($body, $at, 4));

		push @row, $length < 0 ? undef : substr($body, $at + 4, $length);
		$at += 4 + ($length < 0 ? 0 : $length);
	}
	return @row;
}

# Run SQL, return the answer
sub run
{
	my ($self, $sql) = @_;

	$self->send($sql);
	return $self->answer;
}

# The rows of an answer as psql -At prints them
sub text
{
	my ($answer) = @_;

	return join("\n",
		map { join('|', map { $_ // '' } @$_) } @{ $answer->{rows} });
}

# Run SQL that must succeed; returns its rows as psql -At prints them
sub query
{
	my ($self, $sql) = @_;
	my $answer = $self->run($sql);

	croak "$answer->{sqlstate} $answer->{message}, in: $sql"
	  if $answer->{sqlstate};
	croak "connection closed, in: $sql" if $answer->{closed};
	return text($answer);
}

# Run SQL; returns its rows, or the SQLSTATE of its error
sub try
{
	my ($self, $sql) = @_;

	return outcome($self->run($sql));
}

# The same for an answer: its rows or SQLSTATE
sub outcome
{
	my ($answer) = @_;

	return $answer->{sqlstate} || text($answer);
}

# Process id of the backend
sub pid
{
	my ($self) = @_;

	return $self->{pid};
}

# Leave without a word, as a client that dies
sub drop
{
	my ($self) = @_;

	close($self->{socket});
	return;
}

1;
