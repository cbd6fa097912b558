// Ten coroutines, each with several connections that are made at the same time and waited for with one poll().

#include "check.h"

#include <set>
#include <vector>

static int done;

struct Task {
	int fd;
	sockaddr_in address;
};

static void *connect_all(void *arg) {
	co_enable_hook_sys();
	std::vector<Task> &tasks = *static_cast<std::vector<Task> *>(arg);
	for (size_t i = 0; i < tasks.size(); i++) {
		int fd = socket(AF_INET, SOCK_STREAM, IPPROTO_TCP);
		CHECK(fd >= 0);
		set_nonblocking(fd);
		CHECK(fcntl(fd, F_GETFL, 0) & O_NONBLOCK);
		tasks[i].fd = fd;
		int answer = connect(fd, reinterpret_cast<sockaddr *>(&tasks[i].address), sizeof(tasks[i].address));
		CHECK(answer == 0 || errno == EINPROGRESS || errno == ECONNREFUSED);
	}

	std::set<int> raised;
	while (raised.size() < tasks.size()) {
		std::vector<pollfd> fds;
		for (size_t i = 0; i < tasks.size(); i++) {
			if (raised.count(tasks[i].fd) == 0) {
				pollfd writable = {tasks[i].fd, POLLOUT | POLLERR | POLLHUP, 0};
				fds.push_back(writable);
			}
		}
		int answer = poll(&fds[0], fds.size(), 10000);
		CHECK(answer > 0);
		int with_events = 0;
		for (size_t i = 0; i < fds.size(); i++) {
			if (fds[i].revents != 0) {
				with_events++;
				raised.insert(fds[i].fd);
			}
		}
		CHECK(with_events == answer);
	}

	for (size_t i = 0; i < tasks.size(); i++) {
		int error = 0;
		socklen_t length = sizeof(error);
		CHECK(getsockopt(tasks[i].fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
		// Nobody listens at the last address. (A refusal may have been told by connect() itself.)
		if (i + 1 < tasks.size()) {
			CHECK(error == 0);
		} else {
			CHECK(error == ECONNREFUSED || error == 0);
		}
		close(tasks[i].fd);
	}
	done++;
	return NULL;
}

int main() {
	std::vector<Task> tasks;
	int listeners[4];
	for (int i = 0; i < 4; i++) {
		Task task = {-1, sockaddr_in()};
		listeners[i] = listen_on_loopback(&task.address);
		tasks.push_back(task);
	}
	close(listeners[3]);

	std::vector<std::vector<Task> > copies(10, tasks);
	std::vector<stCoRoutine_t *> routines;
	for (size_t i = 0; i < copies.size(); i++) {
		routines.push_back(start(connect_all, &copies[i]));
	}
	loop_until(&done, 10);
	for (size_t i = 0; i < routines.size(); i++) {
		co_release(routines[i]);
	}
	return finish();
}
