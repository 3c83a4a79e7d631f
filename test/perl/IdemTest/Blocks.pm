# The fenced code blocks of a document, each with the mark in front of it, which
# says what a test does with it.  A reader does not see a mark:
#
#	<!-- test: run GROUP -->			run by psql, in the order of the document
#	<!-- test: run GROUP as ROLE in DATABASE fails SQLSTATE ... -->
#	<!-- test: conf -->					lines for postgresql.conf
#	<!-- test: by 052_migrating -->		that test takes it out of the document
#	<!-- test: not run: REASON -->
#
# A block is run as it stands, but for addresses.

package IdemTest::Blocks;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use File::Basename;
use File::Glob 'bsd_glob';
use PostgreSQL::Test::Utils qw(slurp_file);

our @EXPORT = qw(documents blocks block_by indented);

my $root = dirname(__FILE__) . '/../../../';

# Names of all documents
sub documents
{
	return map { substr($_, length $root) }
	  "${root}README.md", bsd_glob("${root}docs/*.md");
}

# The blocks of a document: name of the document, line, language, code, and
# what the mark says (do is "nothing" if there is none)
sub blocks
{
	my ($document) = @_;
	my @lines = split(/^/, slurp_file("$root$document"));
	my (@blocks, $block, $fence);

	foreach my $i (0 .. $#lines)
	{
		if ($block && $lines[$i] =~ /^$fence *$/)
		{
			push @blocks, $block;
			undef $block;
		}
		elsif ($block)
		{
			$block->{code} .= $lines[$i] =~ s/^$block->{indent}//r;
		}
		elsif ($lines[$i] =~ /^( *)(`{3,}|~{3,})(\w*)/)
		{
			$fence = $1 . $2;
			$block = { document => $document, line => $i + 1, indent => $1,
				language => $3, code => '', _mark($i ? $lines[ $i - 1 ] : '') };
		}
	}
	die "$document: a block has no end" if $block;
	return @blocks;
}

# What a mark says
sub _mark
{
	my ($line) = @_;
	my ($mark) = $line =~ /^ *<!-- test: (.*) -->$/ or return (do => 'nothing');

	return (do => 'conf') if $mark eq 'conf';
	return (do => 'not run') if $mark =~ /^not run: \S/;
	return (do => 'by', test => $1) if $mark =~ /^by (\w+)$/;
	return (do => 'run', group => $1, role => $2, database => $3, fails => $4 // '')
	  if $mark =~ /^run (\w+)(?: as (\w+))?(?: in (\w+))?(?: fails ([0-9A-Z ]+))?$/;
	return (do => 'nothing');
}

# Lines that Markdown takes for code because they are indented
sub indented
{
	my ($document) = @_;
	my $text = slurp_file("$root$document");

	$text =~ s/^( *)(`{3,}|~{3,}).*?^\1\2 *$//gms;
	return map { "$document: $_" } $text =~ /^\n((?: {4}|\t).*)/gm;
}

# The code of the blocks of a document that this test runs itself
sub block_by
{
	my ($test, $document) = @_;

	return map { $_->{code} }
	  grep { $_->{do} eq 'by' && $_->{test} eq $test } blocks($document);
}

1;
