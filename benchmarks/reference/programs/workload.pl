# A Perl program of four parts: a log is generated, searched by patterns, counted, sorted and joined.
#
# usage: workload.pl LINES ROUNDS
use strict;
use warnings;

my ($lines, $rounds) = @ARGV;
my $state = 12345;

sub random_below {
    my ($limit) = @_;
    $state = ($state * 1103515245 + 12345) % 2147483648;
    return int($state / 2147483648 * $limit);
}

sub generate {
    my @log;
    for my $i (1 .. $lines) {
        my $user = random_below(1 + random_below(60000));
        push @log, sprintf('%02d:%02d host%d user%d GET /item/%x?page=%d %d %d',
            $i / 3600 % 24, $i / 60 % 60, random_below(40), $user, random_below(1 << 20),
            random_below(30), (200, 200, 200, 304, 404)[random_below(5)], random_below(90000));
    }
    return \@log;
}

sub search {
    my ($log) = @_;
    my ($found, $bytes) = (0, 0);
    for (@$log) {
        my ($item, $page, $size) =
            m{^\d\d:\d\d \S+ user\d+ GET /item/([0-9a-f]+)\?page=(\d+) 200 (\d+)$}
            or next;
        $found++ if $page > 20 && $item =~ /a.*f/;
        $bytes += $size;
    }
    return $found + $bytes;
}

sub count {
    my ($log) = @_;
    my %user;
    for (@$log) {
        my @field = split ' ';
        $user{$field[2]}{$field[1]} += $field[-1];
    }
    my $sum = 0;
    for my $name (sort { keys %{$user{$b}} <=> keys %{$user{$a}} || $a cmp $b } keys %user) {
        $sum = ($sum * 31 + $_) % 1000003 for map { $user{$name}{$_} } sort keys %{$user{$name}};
    }
    return $sum;
}

sub order {
    my ($log) = @_;
    my @pairs = map { [(split ' ')[-1], $_] } @$log;
    my $text = join "\n", map { $_->[1] } sort { $a->[0] <=> $b->[0] || $a->[1] cmp $b->[1] } @pairs;
    $text =~ tr/a-z/A-Z/;
    return length($text) + ($text =~ s/USER(\d)\b/U$1/g);
}

for my $round (1 .. $rounds) {
    my $log = generate();
    print join(' ', search($log), count($log), order($log)), "\n";
}
