! Products of matrices by the BLAS, and a relaxation on a grid by loops of our own.
!
! usage: PROGRAM ROUNDS    prints a checksum; 0 rounds: without end
program blas
    implicit none
    integer, parameter :: n = 400, m = 600
    double precision :: a(n, n), b(n, n), c(n, n), grid(m, m), next(m, m), total
    integer :: rounds, i, j
    integer(8) :: done
    character(len=20) :: text
    external :: dgemm

    rounds = 0
    if (command_argument_count() > 0) then
        call get_command_argument(1, text)
        read (text, *) rounds
    end if
    do j = 1, n
        do i = 1, n
            a(i, j) = dble(mod(i * 7 + j * 13, 101)) / 101d0
            b(i, j) = dble(mod(i * 11 + j * 3, 97)) / 97d0
        end do
    end do
    grid = 0d0
    grid(:, 1) = 1d0
    next = grid
    total = 0d0
    done = 0
    do while (rounds == 0 .or. done < rounds)
        call dgemm('n', 't', n, n, n, 1d0, a, n, b, n, 0d0, c, n)
        do j = 2, m - 1
            do i = 2, m - 1
                next(i, j) = 0.25d0 * (grid(i - 1, j) + grid(i + 1, j) + grid(i, j - 1) &
                    + grid(i, j + 1))
            end do
        end do
        grid = next
        total = 0.5d0 * total + c(mod(int(done), n) + 1, 5) + grid(m / 2, 3)
        done = done + 1
    end do
    write (*, '(z16.16)') transfer(total, 0_8)
end program blas
