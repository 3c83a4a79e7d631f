# A node whose clock a test can set while it runs, see test/clock/shift_clock.c.
# The test itself, its psql and its other programs go by the true clock.

package IdemTest::Clock;

use strict;
use warnings FATAL => 'all';

use Carp;
use Fcntl;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils ();

our @ISA = ('PostgreSQL::Test::Cluster');

my $source = 'test/clock/shift_clock.c';
my $library;

# Where the library is; built once a test, in a directory that goes with it
sub library
{
	if (!defined $library)
	{
		my $file = PostgreSQL::Test::Utils::tempdir() . '/shift_clock.so';

		PostgreSQL::Test::Utils::system_or_bail('cc', '-shared', '-fPIC',
			'-o', $file, $source);
		$library = $file;
	}
	return $library;
}

sub _clock_file
{
	my ($self) = @_;

	return $self->basedir . '/clock';
}

# Write the offset; one write of eight bytes, so that nobody sees half of it
sub _set_offset
{
	my ($self, $nanoseconds) = @_;
	my $file = $self->_clock_file;

	# not truncated, for servers have it mapped
	sysopen(my $handle, $file, O_WRONLY | O_CREAT)
	  or croak "could not open $file: $!";
	syswrite($handle, pack('q', $nanoseconds)) == 8
	  or croak "could not write to $file: $!";
	close($handle);
	$self->{offset} = $nanoseconds;
	return;
}

sub _with_clock
{
	my ($self, $method, @argument) = @_;

	$self->_set_offset(0) if !defined $self->{offset};
	local $ENV{LD_PRELOAD} = library();
	local $ENV{IDEM_CLOCK_FILE} = $self->_clock_file;
	return $self->$method(@argument);
}

sub start
{
	my ($self, @argument) = @_;

	return $self->_with_clock('SUPER::start', @argument);
}

sub restart
{
	my ($self, @argument) = @_;

	return $self->_with_clock('SUPER::restart', @argument);
}

# Set the server's clock forward by so many seconds, or back if there are less
# than none
sub step_clock
{
	my ($self, $seconds) = @_;

	return $self->_set_offset($self->{offset} + int($seconds * 1e9));
}

1;
